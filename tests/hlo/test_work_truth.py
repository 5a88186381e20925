"""Work against what is known without it: XLA's own counts, and models on paper."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from lagom_jax.cluster import Cluster
from lagom_jax.compile import compile_step, lower
from lagom_jax.hlo import read_module
from lagom_jax.hlo.work import KINDS, work

f32 = jnp.float32


def array(*sizes, dtype=f32):
    return jax.ShapeDtypeStruct(sizes, dtype)


def total_flops(module, computation):
    """Operations of a computation and of those it calls by name."""
    total = 0.0
    for instruction in computation.instructions.values():
        total += work(module, computation, instruction).flops
        if instruction.opcode == "call":
            total += total_flops(module, *module.called(instruction))
    return total


def convolution(**how):
    how.setdefault("window_strides", (1, 1))
    how.setdefault("padding", "SAME")
    return lambda x, w: lax.conv_general_dilated(x, w, **how)


def pool(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3), (1, 2, 2), "VALID")


IMAGE, KERNEL = array(2, 6, 13, 17), array(4, 6, 3, 5)
STEPS = {
    "batched product": (
        lambda a, b: jnp.einsum("bij,bkj->bik", a, b),
        (array(3, 5, 7), array(3, 11, 7)),
    ),
    "gradient of two layers": (
        jax.grad(lambda w, x: ((x @ w[0]) @ w[1]).sum()),
        ((array(8, 16), array(16, 4)), array(32, 8)),
    ),
    "convolution": (
        convolution(
            window_strides=(2, 1),
            padding=((1, 2), (0, 3)),
            lhs_dilation=(2, 1),
            rhs_dilation=(1, 2),
        ),
        (IMAGE, KERNEL),
    ),
    "grouped convolution": (
        convolution(feature_group_count=2),
        (IMAGE, array(4, 3, 3, 5)),
    ),
    "convolution of batch groups": (
        convolution(batch_group_count=2),
        (array(4, 6, 13, 17), KERNEL),
    ),
    "gradients of a convolution": (
        jax.grad(
            lambda x, w: convolution(window_strides=(2, 2))(x, w).sum(), argnums=(0, 1)
        ),
        (IMAGE, KERNEL),
    ),
    "sum": (lambda x: x.sum(1), (array(13, 17, 3),)),
    "largest": (lambda x: x.max(), (array(13, 17, 3),)),
    "place of the largest": (lambda x: x.argmax(1), (array(13, 17, 3),)),
    "pooling": (pool, (array(2, 13, 17),)),
    "gradient of pooling": (jax.grad(lambda x: pool(x).sum()), (array(2, 13, 17),)),
    "running sum": (jnp.cumsum, (array(100),)),
    "arithmetic": (lambda x, y: jnp.maximum(x, y) * 2 - x, (array(13, 17),) * 2),
    "conversion": (lambda x: x.astype(jnp.bfloat16), (array(13, 17),)),
    "rows": (lambda x, i: x[i], (array(13, 64), array(5, dtype=jnp.int32))),
}


@pytest.mark.parametrize("name", STEPS)
def test_operations_are_those_that_xla_counts(name):
    function, arguments = STEPS[name]
    traced = jax.jit(function).trace(*arguments)
    lowered = traced.lower(lowering_platforms=("cpu",))
    hlo = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    module = read_module(hlo)
    assert total_flops(module, module.entry) == lowered.cost_analysis()["flops"] > 0


def compiled(function, *arguments, options=None):
    result = compile_step(
        lower(function, *arguments), Cluster.parse("h100:1x1"), options
    )
    return read_module(result.module_bytes)


def kernels(module):
    """The work of everything that the compiler scheduled, by instruction."""
    return [
        (instruction, work(module, computation, instruction))
        for computation in module.computations.values()
        for instruction in computation.sequence or ()
    ]


BATCH, SEQUENCE, WIDTH, HIDDEN, LAYERS = 2, 256, 128, 512, 3


def transformer(weights, x):
    """Layers of one attention head and a perceptron, written out."""
    for query, key, value, out, up, down in zip(*weights, strict=True):
        scores = jnp.einsum("bsd,btd->bst", x @ query, x @ key)
        x = x + jax.nn.softmax(scores) @ (x @ value) @ out
        x = x + jax.nn.gelu(x @ up) @ down
    return (x.astype(f32) ** 2).sum()


def transformer_arguments():
    bf16 = jnp.bfloat16
    square = tuple(array(WIDTH, WIDTH, dtype=bf16) for _ in range(LAYERS))
    up = tuple(array(WIDTH, HIDDEN, dtype=bf16) for _ in range(LAYERS))
    down = tuple(array(HIDDEN, WIDTH, dtype=bf16) for _ in range(LAYERS))
    x = array(BATCH, SEQUENCE, WIDTH, dtype=bf16)
    return (square, square, square, square, up, down), x


@pytest.mark.parametrize("triton", [True, False])
def test_a_transformer_takes_the_operations_that_its_shapes_say(triton):
    weights, x = transformer_arguments()
    module = compiled(
        jax.jit(jax.grad(transformer, argnums=(0, 1))),
        *(weights, x),
        options={"xla_gpu_enable_triton_gemm": triton},
    )
    found = kernels(module)
    parameters = LAYERS * (4 * WIDTH * WIDTH + 2 * WIDTH * HIDDEN)
    scores = LAYERS * BATCH * SEQUENCE * SEQUENCE * WIDTH
    # Forward once and backward twice: two operations for each weight and token, and
    # for the two products of attention.
    expected = 3 * (2 * parameters * BATCH * SEQUENCE + 2 * 2 * scores)
    assert sum(m.flops for _, w in found for m in w.matmuls) == expected
    targets = {w.target for _, w in found if w.kind == "matmul"}
    if triton:
        assert targets == {""}
    else:
        assert targets & {"__cublas$gemm", "__cublas$lt$matmul"}
    assert not [w for _, w in found if w.kind == "custom"]


def test_a_compiled_module_loses_no_bytes():
    weights, x = transformer_arguments()

    def step(weights, x):
        gradient = jax.grad(transformer)(weights, x)
        return jax.tree.map(lambda w, g: w - g * 0.1, weights, gradient)

    module = compiled(jax.jit(step, donate_argnums=0), weights, x)
    entry = module.entry
    found = [(i, work(module, entry, i)) for i in entry.sequence]
    assert {w.kind for _, w in found} <= KINDS
    for instruction, w in found:
        operands = sum(o.shape.byte_size for o in set(entry.operands(instruction)))
        if w.kind in ("matmul", "fusion", "reduction", "transpose"):
            assert 0 < w.bytes_read <= operands, instruction.name
            assert w.bytes_written == instruction.shape.byte_size, instruction.name
    # Every weight is read by its two products forward and backward and by the update.
    size = 2 * LAYERS * (4 * WIDTH * WIDTH + 2 * WIDTH * HIDDEN)
    assert sum(w.bytes_read for _, w in found) > 3 * size
    assert sum(w.bytes_written for _, w in found) > size


def test_a_loop_slices_its_weights_and_stacks_its_results():
    def step(weights, x):
        def layer(x, w):
            x = jnp.tanh(x @ w)
            return x, x

        return lax.scan(layer, x, weights)

    layers, rows = 8, 256
    module = compiled(
        jax.jit(step),
        array(layers, WIDTH, WIDTH, dtype=jnp.bfloat16),
        array(rows, WIDTH, dtype=jnp.bfloat16),
    )
    slice_, update = 2 * WIDTH * WIDTH, 2 * rows * WIDTH
    index = 4
    found = {}
    for instruction, w in kernels(module):
        inside = {
            i.opcode
            for c in module.called(instruction)
            for i in c.instructions.values()
        }
        for opcode in ("dynamic-slice", "dynamic-update-slice"):
            if opcode in inside | {instruction.opcode}:
                found[opcode] = (w.kind, w.bytes_read, w.bytes_written)
    assert found == {
        "dynamic-slice": ("copy", slice_ + index, slice_),
        "dynamic-update-slice": ("copy", update + index, update),
    }
