"""What holds for the work of every kernel."""

import itertools
import math

import hypothesis
import hypothesis.strategies as st
import numpy as np

from lagom_jax.hlo.work import KINDS, work
from tests.depth import examples
from tests.hlo.kernels import fused, one, work_of
from tests.texts import parse

SIZES = st.integers(1, 12)
few = examples(by_day=25, by_night=500)


def shape(sizes, type_="f32"):
    return f"{type_}[{','.join(map(str, sizes))}]"


UNARY = ["negate", "exponential", "abs", "tanh", "copy"]
BINARY = ["add", "multiply", "maximum", "subtract"]


@st.composite
def elementwise_graphs(draw):
    """Lines of elementwise operations over two inputs; the last one is the result."""
    names, lines = ["p0", "p1"], []
    for number in range(draw(st.integers(1, 8))):
        name = f"v{number}"
        opcode = draw(st.sampled_from(UNARY + BINARY))
        operands = draw(
            st.lists(
                st.sampled_from(names),
                min_size=1 if opcode in UNARY else 2,
                max_size=1 if opcode in UNARY else 2,
            )
        )
        lines.append((name, f"{opcode}({', '.join(operands)})"))
        names.append(name)
    return lines


@few
@hypothesis.given(elementwise_graphs(), st.lists(SIZES, min_size=1, max_size=3))
def test_fusing_elementwise_operations_never_moves_more(lines, sizes):
    of = shape(sizes)
    body = [f"{name} = {of} {call}" for name, call in lines]
    body[-1] = "ROOT " + body[-1]
    kernel = work_of(fused("\n".join(body), of, of, of))
    inputs = [f"p{i} = {of} parameter({i})" for i in range(2)]
    module = parse("ENTRY e {\n" + "\n".join(inputs + body) + "\n}")
    parts = [work(module, module.entry, i) for i in module.entry.sequence]
    assert kernel.hbm_bytes <= sum(part.hbm_bytes for part in parts)
    assert kernel.flops <= sum(part.flops for part in parts)
    size = 4 * math.prod(sizes)
    assert kernel.bytes_written == size
    assert 0 <= kernel.bytes_read <= 2 * size


@st.composite
def movements(draw):
    """Operations that move, as HLO and as the input element each result comes from."""
    sizes = tuple(draw(st.lists(SIZES, min_size=2, max_size=3)))
    places = np.arange(math.prod(sizes)).reshape(sizes)
    sources = [places]
    lines, name = [], "p0"
    for number in range(draw(st.integers(1, 5))):
        at = sources[0].shape
        kind = draw(
            st.sampled_from(["slice", "transpose", "reshape", "reverse", "add"])
        )
        if kind == "slice":
            low = [draw(st.integers(0, n - 1)) for n in at]
            high = [draw(st.integers(a + 1, n)) for a, n in zip(low, at, strict=True)]
            bounds = list(zip(low, high, strict=True))
            cut = tuple(slice(a, b) for a, b in bounds)
            sources = [source[cut] for source in sources]
            text = ", ".join(f"[{a}:{b}]" for a, b in bounds)
            call = f"slice({name}), slice={{{text}}}"
        elif kind == "transpose":
            order = draw(st.permutations(range(len(at))))
            sources = [source.transpose(order) for source in sources]
            call = f"transpose({name}), dimensions={{{','.join(map(str, order))}}}"
        elif kind == "reverse":
            axis = draw(st.integers(0, len(at) - 1))
            sources = [np.flip(source, axis) for source in sources]
            call = f"reverse({name}), dimensions={{{axis}}}"
        elif kind == "reshape":
            sources = [source.reshape(-1) for source in sources]
            call = f"reshape({name})"
        else:
            call = f"add({name}, {name})"
        name = f"part{number}"
        lines.append(f"{name} = {shape(sources[0].shape)} {call}")
    return sizes, lines, sources


@few
@hypothesis.given(movements())
def test_a_chain_of_movements_reads_exactly_what_its_result_comes_from(drawn):
    sizes, lines, sources = drawn
    body = "\n".join([*lines[:-1], "ROOT " + lines[-1]])
    found = work_of(fused(body, shape(sources[0].shape), shape(sizes)))
    assert found.bytes_read == 4 * len(np.unique(sources))
    assert found.bytes_written == 4 * sources[0].size


@few
@hypothesis.given(st.lists(movements(), min_size=2, max_size=3))
def test_several_chains_read_no_less_than_needed_and_no_more_than_there_is(drawn):
    sizes, *_ = drawn[0]
    names, body, needed = [], [], [np.array([], int)]
    for number, (own, lines, sources) in enumerate(drawn):
        if own != sizes:
            continue
        for line in lines:
            body.append(line.replace("part", f"chain{number}_"))
        names.append((body[-1].split(" = ")[0], shape(sources[0].shape)))
        needed.append(np.unique(sources))
    results = f"({', '.join(of for _, of in names)})"
    body.append(f"ROOT t = {results} tuple({', '.join(name for name, _ in names)})")
    found = work_of(fused("\n".join(body), results, shape(sizes)))
    exact = 4 * len(np.unique(np.concatenate(needed)))
    assert exact <= found.bytes_read <= 4 * math.prod(sizes)


@few
@hypothesis.given(
    st.lists(st.tuples(SIZES, st.integers(0, 30)), min_size=1, max_size=3),
    st.sampled_from(["", "bitcast", "tuple"]),
)
def test_an_update_in_place_never_counts_the_buffer(axes, wrap):
    update = shape([new for new, _ in axes])
    buffer = shape([new + more for new, more in axes])
    indices = ", ".join(["p2"] * len(axes))
    body = f"d = {buffer} dynamic-update-slice(p0, p1, {indices})"
    result = buffer
    if wrap == "bitcast":
        body += f"\nROOT b = {buffer} bitcast(d)"
    elif wrap == "tuple":
        result = f"({buffer})"
        body += f"\nROOT t = {result} tuple(d)"
    else:
        body = "ROOT " + body
    found = work_of(fused(body, result, buffer, update, "s32[]"))
    size = 4 * math.prod(new for new, _ in axes)
    assert (found.bytes_read, found.bytes_written) == (size + 4, size)


@few
@hypothesis.given(
    st.lists(SIZES, min_size=4, max_size=4),
    st.permutations(range(3)),
    st.permutations(range(3)),
    st.booleans(),
)
def test_operations_of_a_product_do_not_depend_on_the_order_of_anything(
    sizes, left, right, swap
):
    batch, m, n, k = sizes
    sides = []
    for name, parts, order in [("lhs", "bmk", left), ("rhs", "bkn", right)]:
        axes = [parts[axis] for axis in order]
        values = [{"b": batch, "m": m, "n": n, "k": k}[axis] for axis in axes]
        sides.append((name, axes, shape(values)))
    if swap:
        sides = [
            (name, axes, of)
            for (name, *_), (_, axes, of) in zip(sides, sides[::-1], strict=True)
        ]
    numbers = ", ".join(
        f"{name}_batch_dims={{{axes.index('b')}}}, "
        f"{name}_contracting_dims={{{axes.index('k')}}}"
        for name, axes, _ in sides
    )
    result = shape([batch, n, m] if swap else [batch, m, n])
    found = work_of(one(result, f"dot(), {numbers}", *(of for *_, of in sides)))
    assert found.flops == 2 * batch * m * n * k
    (matmul,) = found.matmuls
    assert (matmul.batch, {matmul.m, matmul.n}, matmul.k) == (batch, {m, n}, k)


def test_a_million_instructions_take_time_in_proportion():
    """Steps grow with the instructions: counted, as time on a busy machine is not."""

    def calls(kernels):
        import sys

        of = "f32[8,128]"
        body = "\n".join(f"v{i + 1} = {of} negate(v{i})" for i in range(30))
        text = [f"body {{\nv0 = {of} parameter(0)\n{body}\nROOT r = {of} abs(v30)\n}}"]
        lines = [f"p0 = {of} parameter(0)"] + [
            f"p{i + 1} = {of} fusion(p{i}), kind=kLoop, calls=body"
            for i in range(kernels)
        ]
        module = parse("\n".join([*text, "ENTRY e {", *lines, "}"]))
        count = itertools.count()
        sys.setprofile(lambda *_: next(count))
        try:
            for instruction in module.entry.sequence:
                assert work(module, module.entry, instruction).kind in KINDS
        finally:
            sys.setprofile(None)
        return next(count)

    once, often = calls(10), calls(80)
    assert often < 8.1 * once
