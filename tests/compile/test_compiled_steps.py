"""Real compiles of small steps: what the user asked for is in the module."""

import functools
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from flax.training import train_state
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from lagom_jax.cluster import Cluster
from lagom_jax.compile import Target, compile_step, lower
from lagom_jax.errors import CompileError
from tests.compile.conftest import TARGET_TEXT, array, hlo_text, mesh
from tests.compile.steps import training_step


def first_line(text):
    return text.splitlines()[0]


def test_a_training_step_keeps_donation_and_out_shardings(h100x8):
    step, arguments = training_step(mesh(4, 2))
    compiled = compile_step(lower(step, *arguments), h100x8)
    text = hlo_text(compiled.module_bytes)
    assert first_line(text).startswith("HloModule jit_step, is_scheduled=true")
    aliases = re.search(r"input_output_alias=\{(.*?)\}, entry", first_line(text))
    assert aliases
    assert aliases[1].count("alias)") == 3
    # up is (3, 128, 256) over (4, 2) on its last two axes; down (3, 256, 128) over 2.
    returned = first_line(text).split("->")[1]
    assert "bf16[3,32,128]" in returned
    assert "bf16[3,128,128]" in returned
    for opcode in ("all-gather", "all-reduce", "while"):
        assert f" {opcode}" in text
    # What only the GPU backend writes.
    assert "operation_queue_id" in text or "force_earliest_schedule" in text
    assert compiled.device_kind == "NVIDIA H100 80GB HBM3"
    weight_bytes = 2 * (3 * 32 * 128 + 3 * 128 * 128)
    count_bytes = 4
    assert compiled.memory.alias_bytes == weight_bytes + count_bytes
    assert compiled.memory.argument_bytes >= weight_bytes + count_bytes
    assert compiled.memory.temp_bytes > 0
    assert compiled.compile_seconds > 0
    assert compiled.versions["jaxlib"] == compiled.versions["jax-cuda12-pjrt"]


def test_collectives_are_asynchronous_as_on_the_gpu(h100x8):
    step, arguments = training_step(mesh(8, 1))
    text = hlo_text(compile_step(lower(step, *arguments), h100x8).module_bytes)
    assert "all-gather-start" in text


def test_shard_map(h100x8):
    on = mesh(8)
    step = jax.shard_map(
        lambda x: jax.lax.all_to_all(x, "data", 1, 0, tiled=True),
        mesh=on,
        in_specs=P("data"),
        out_specs=P("data"),
    )
    compiled = compile_step(lower(step, array(on, 64, 64, spec=P("data"))), h100x8)
    assert "all-to-all" in hlo_text(compiled.module_bytes)


def test_baked_shardings(h100x8):
    on = mesh(8)
    step = jax.jit(
        lambda x: x * 2,
        in_shardings=NamedSharding(on, P("data")),
        out_shardings=NamedSharding(on, P(None, "data")),
    )
    lowered = lower(step, jax.ShapeDtypeStruct((64, 64), jnp.float32))
    text = hlo_text(compile_step(lowered, h100x8).module_bytes)
    assert "{(f32[8,64]{1,0})->f32[64,8]{1,0}}" in first_line(text)


def test_real_arrays_on_the_cpu_do_not_make_it_a_program_for_the_cpu(h100):
    step = jax.jit(lambda x: jnp.tanh(x @ x))
    compiled = compile_step(lower(step, jnp.ones((64, 64), jnp.bfloat16)), h100)
    assert compiled.device_kind == "NVIDIA H100 80GB HBM3"
    assert "gemm" in hlo_text(compiled.module_bytes)


def test_an_nnx_step(h100x8):
    on = mesh(8)
    graph, params = nnx.split(
        nnx.eval_shape(lambda: nnx.Linear(8, 8, rngs=nnx.Rngs(0)))
    )
    params = jax.tree.map(
        lambda leaf: array(on, *leaf.shape, dtype=leaf.dtype, spec=P("data")), params
    )

    def step(params, batch):
        grads = jax.grad(lambda p: jnp.mean(nnx.merge(graph, p)(batch) ** 2))(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    batch = array(on, 16, 8, spec=P("data"), dtype=jnp.float32)
    compiled = compile_step(
        lower(jax.jit(step, donate_argnums=0), params, batch), h100x8
    )
    assert compiled.memory.alias_bytes == 4 * (8 * 8 + 8) // 8


def test_a_linen_step_with_an_optimizer(h100x8):
    on = mesh(8)
    model = nn.Dense(8)

    def init():
        params = model.init(jax.random.key(0), jnp.ones((1, 8)))
        return train_state.TrainState.create(
            apply_fn=model.apply, params=params, tx=optax.adamw(1e-3)
        )

    def sharded(leaf):
        spec = P("data") if leaf.ndim else P()
        return array(on, *leaf.shape, dtype=leaf.dtype, spec=spec)

    state = jax.tree.map(sharded, jax.eval_shape(init))

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state, batch):
        grads = jax.grad(lambda p: jnp.mean(state.apply_fn(p, batch) ** 2))(
            state.params
        )
        return state.apply_gradients(grads=grads)

    batch = array(on, 16, 8, spec=P("data"), dtype=jnp.float32)
    compiled = compile_step(lower(step, state, batch), h100x8)
    # Weights and two moments of each, and the counts of the step and the optimizer.
    assert compiled.memory.alias_bytes == 3 * 4 * (8 * 8 + 8) // 8 + 2 * 4


def test_the_old_partitioner(h100x8):
    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        step, arguments = training_step(mesh(4, 2))
        lowered = lower(step, *arguments)
    finally:
        jax.config.update("jax_use_shardy_partitioner", before)
    # The setting is the step's own by now, whatever this process has since.
    assert b"sdy" not in lowered.stablehlo
    assert "all-gather" in hlo_text(compile_step(lowered, h100x8).module_bytes)


def test_options_reach_the_compiler_and_the_users_own_win(h100):
    square = jnp.ones((256, 256), jnp.bfloat16)

    def kernels(step, options):
        compiled = compile_step(lower(step, square), h100, options)
        return compiled, hlo_text(compiled.module_bytes)

    plain = jax.jit(lambda x: x @ x)
    pinned = jax.jit(
        lambda x: x @ x, compiler_options={"xla_gpu_enable_triton_gemm": False}
    )
    wanted = {"xla_gpu_enable_triton_gemm": True, "fdo_profile": b""}
    assert "__triton" in kernels(plain, wanted)[1]
    compiled, text = kernels(pinned, wanted)
    assert "__triton" not in text
    assert compiled.options == {"xla_gpu_enable_triton_gemm": False, "fdo_profile": b""}


def test_what_the_compiler_warns_of_is_kept():
    small = re.sub(
        "device_memory_size: [0-9]+", "device_memory_size: 1000000", TARGET_TEXT
    )
    step = jax.jit(lambda x: jnp.tanh(x @ x) @ x)
    lowered = lower(step, jax.ShapeDtypeStruct((1024, 1024), jnp.bfloat16))
    compiled = compile_step(lowered, Target("small:1x1", small, "1x1x1"))
    assert any("rematerialization" in warning for warning in compiled.warnings)


def test_for_a_cluster():
    lowered = lower(lambda x: x.sum(), array(mesh(16), 64, spec=P("data")))
    compiled = compile_step(lowered, Cluster.parse("h100:2x8"))
    assert compiled.target == "h100:2x8"
    text = hlo_text(compiled.module_bytes)
    assert re.search(r"all-reduce.*replica_groups=mesh\['\w+'=16\] \{'\w+'\}", text)


class TestMistakes:
    def test_the_wrong_number_of_devices(self, h100x8):
        lowered = lower(lambda x: x.sum(), array(mesh(4, 4), 64, spec=P("data")))
        message = r"16 devices \(mesh data=4, model=4\), but h100:1x8 has 8 GPUs: name"
        with pytest.raises(CompileError, match=message):
            compile_step(lowered, h100x8)

    def test_no_mesh_at_all(self, h100x8):
        with pytest.raises(CompileError, match=r"for one device.*AbstractMesh"):
            compile_step(lower(lambda x: x * 2, 1.0), h100x8)

    def test_an_unknown_option(self, h100):
        message = "no compiler option xla_gpu_bogus: check its spelling"
        with pytest.raises(CompileError, match=message):
            compile_step(lower(lambda x: x * 2, 1.0), h100, {"xla_gpu_bogus": True})

    def test_an_option_of_the_wrong_type(self, h100):
        message = (
            "(?s)f for h100:1x1: it refused the program.*'banana' is not a valid bool"
        )

        def f(x):
            return x * 2

        with pytest.raises(CompileError, match=message):
            compile_step(lower(f, 1.0), h100, {"xla_gpu_enable_triton_gemm": "banana"})

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"xla_gpu_x": [1]}, "of type list"),
            ({"xla_gpu_x": b"1"}, "is bytes, not bool"),
            ({"fdo_profile": "1"}, "is str, not bytes"),
        ],
    )
    def test_options_that_are_none(self, h100, options, message):
        with pytest.raises(CompileError, match=message):
            compile_step(lower(lambda x: x * 2, 1.0), h100, options)

    def test_a_target_that_xla_cannot_read(self):
        target = Target("mine:1x1", TARGET_TEXT + "no_such_field: 1", "1x1x1")
        with pytest.raises(CompileError, match="unknown to this version"):
            compile_step(lower(lambda x: x * 2, 1.0), target)

    def test_a_target_that_kills_the_compiler_kills_only_the_child(self):
        text = TARGET_TEXT.replace("threads_per_warp: 32", "")
        target = Target("mine:1x1", text, "1x1x1")
        lowered = lower(lambda x: jnp.tanh(x @ x).sum(), jnp.ones((64, 64)))
        with pytest.raises(CompileError, match="died of SIG"):
            compile_step(lowered, target)
