"""What XLA's GPU compiler makes of sliced collective matmuls."""

import dataclasses

import jax
import pytest

from lagom_jax.decompose import Form
from lagom_jax.program.build import build_program
from lagom_jax.program.program import Kernel
from tests.decompose.programs import (
    added_to,
    forward,
    layer,
    program,
    walk,
    workspace,
    written,
)


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["h100:1x4", "b200:1x4"])
@pytest.mark.parametrize("form", [Form("ring"), Form("direct")], ids=lambda f: f.kind)
def test_the_first_slice_of_a_gather_waits_for_nothing(cluster, form):
    # The own slice is multiplied while the first message is under way; every other
    # message has a matmul between its start and its end.
    least = ["start", "matmul", "done"] * 3 + ["matmul"]
    assert walk(program("gather", form, cluster).module) == least
    # XLA's matmul applies this one by itself, and nobody else needs its product then.
    applied = program("gather", form, cluster, activation=jax.nn.gelu)
    assert walk(applied.module) == least


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["h100:1x4", "b200:1x4"])
def test_nothing_is_sent_after_the_last_slice_of_a_scatter(cluster):
    order = walk(program("scatter", Form("ring"), cluster).module)
    assert order.count("start") == 3, order
    assert order.count("matmul") == 4
    assert order == ["matmul"] + ["start", "matmul", "done"] * 3


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["h100:1x4", "b200:1x4"])
@pytest.mark.parametrize("kind", ["ring", "direct"])
def test_every_message_of_a_layer_and_its_gradients_has_a_matmul_beside_it(
    cluster, kind
):
    order = walk(layer(Form(kind), cluster).module)
    # Gathered and scattered in both passes; a matmul for each slice of these four, and
    # for the gradients of two weights.
    assert order.count("start") == order.count("done") == 4 * 3, order
    assert order.count("matmul") == 4 * 4 + 2
    begun = None
    for place, what in enumerate(order):
        if what == "start":
            assert begun is None
            begun = place
        if what == "done":
            assert "matmul" in order[begun:place], order
            begun = None


@pytest.mark.slow
def test_matmuls_add_what_arrives_and_what_weights_have_so_far():
    usual, added = (
        layer(form).module
        for form in (
            Form("ring", wide_sums=False),
            Form("ring", wide_sums=False, sums_in_matmul=True, whole_weights=False),
        )
    )
    assert not any(added_to(usual))
    # Three of four slices, scattered in both passes and of two weights.
    assert sum(added_to(added)) == 4 * 3
    assert len(added_to(added)) == 6 * 4
    joined = [
        sum(one.opcode == "concatenate" for c in computations for one in c)
        for computations in (_kernels(usual), _kernels(added))
    ]
    # The rows and the features of both weights' matmuls, and a slice's worth of none.
    assert joined == [4, 0]


def _kernels(module):
    for one in module.entry.sequence:
        yield [one]
        if one.opcode == "fusion":
            yield from ([*c.instructions.values()] for c in module.called(one))


CHUNKS = Form("chunks", slices=4)


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["h100:1x4", "b200:1x4"])
@pytest.mark.parametrize("whole_weights", [True, False])
def test_each_chunk_travels_beside_the_matmul_of_another(cluster, whole_weights):
    """Sent one after the other: else XLA sends all of them when the last is made."""
    form = dataclasses.replace(CHUNKS, whole_weights=whole_weights)
    apart = {
        f"xla_gpu_{kind}_combine_threshold_bytes": 0
        for kind in ("all_gather", "reduce_scatter")
    }
    # Of a scatter the last has no matmul beside it, of a gather the first.
    last = [*("matmul", "start"), *(["matmul", "done", "start"] * 3), "done"]
    first = [*("start", "done"), *(["start", "matmul", "done"] * 3), "matmul"]
    for function, order in (("scatter", last), ("gather", first)):
        for made in (program, written):
            found = made(function, form, cluster, options=apart)
            # With nothing beside it jax 0.12 has one instruction, 0.10 a start and an end.
            words = " ".join(walk(found.module))
            for one in ("synchronous start done", "synchronous start"):
                words = words.replace(one, "start done")
            assert words.split() == order


@pytest.mark.slow
def test_matmuls_of_the_same_rows_stay_apart():
    """XLA would put the weights of small ones together, once for every slice."""
    order = walk(written("gather", CHUNKS, "h100:1x4", weights=2).module)
    assert order.count("matmul") == 4 * 2


@pytest.mark.slow
def test_finer_slices_in_both_directions():
    order = walk(program("gather", Form("ring", slices=2, both_ways=True)).module)
    assert order.count("start") == 3 * 4
    assert order.count("matmul") == 4 * 4
    assert "synchronous start" not in order


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ring", "direct"])
@pytest.mark.parametrize("made", [program, written])
@pytest.mark.parametrize("function", ["gather", "scatter"])
def test_one_slice_is_sent_one_received_and_one_multiplied(function, made, kind):
    """No more is kept beside operands and result, but for cuBLAS's own workspace."""
    found = made(function, Form(kind, wide_sums=False), ranks=8)
    rows, across = 8192 // 8, 2048 // 8
    sent = 2 * rows * (1024 if function == "gather" else 2048)
    multiplied = 2 * rows * (across if function == "gather" else 1024 // 8)
    if (function, kind) == ("scatter", "direct"):
        # A ring multiplies where the result is to be. Here what came so far is there,
        # and what comes is added to it while the next is received.
        multiplied += 2 * sent
    arrays = {
        "gather": (rows * 1024, 1024 * across, 8192 * across),
        "scatter": (8192 * 1024 // 8, 1024 // 8 * 2048, rows * 2048),
    }
    beside = found.peak_memory_bytes - 2 * sum(arrays[function])
    scalars = 64
    assert beside <= 2 * sent + multiplied + workspace(found.module) + scalars


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ring", "direct"])
@pytest.mark.parametrize("mode", ["DEFAULT", "COLLECTIVES_SYMMETRIC_MEMORY"])
def test_a_layer_has_a_slice_to_send_and_one_to_receive_for_both_collectives(
    mode, kind
):
    """While they overlap; and one of each matmul that is made meanwhile."""
    options = {} if mode == "DEFAULT" else {"xla_gpu_collective_permute_mode": mode}
    found = forward(Form(kind, wide_sums=False), options)
    rows, width, hidden = 8192 // 4, 1024, 2048 // 4
    operands = 2 * (rows * width + 2 * width * hidden)
    sent, made = 2 * rows * width, 2 * rows * hidden
    beside = found.peak_memory_bytes - operands - sent
    scalars = 2**14
    assert beside <= 5 * sent + made + workspace(found.module) + scalars


@pytest.mark.slow
def test_less_memory_than_the_plain_form():
    plain = program("gather", Form("chunks")).peak_memory_bytes
    assert program("gather", Form("ring")).peak_memory_bytes < plain


@pytest.mark.slow
@pytest.mark.parametrize(
    "form", [Form("whole"), Form("chunks", slices=2)], ids=lambda form: form.kind
)
def test_nothing_that_is_gathered_or_scattered_is_transposed(form):
    """Where examples stand before rows, chunks stay in the order of ranks."""
    plain, cut = (layer(one, examples=8) for one in (Form("chunks"), form))
    least = 2 * 8192 * 1024 // form.slices
    assert _moved(plain, "transpose", least)
    assert not _moved(cut, "transpose", least)


def _moved(scheduled, kind, least):
    """Kernels of a program that only move data, in one way, so many bytes or more."""
    return [
        one
        for one, _, _ in build_program(scheduled.module).tasks()
        if isinstance(one, Kernel)
        and one.work.kind == kind
        and one.work.bytes_written >= least
    ]


@pytest.mark.slow
def test_slices_are_put_together_by_the_kernel_that_takes_them_by_element():
    """Where they are the result, each is written where it belongs as it is made."""
    least = 2 * (8192 // 4) * (2048 // 4)
    by_itself, by_element = (
        _moved(written("gather", Form("ring"), taken=taken), "copy", least)
        for taken in (lambda y: y, jax.numpy.tanh)
    )
    assert len(by_itself) >= 4
    assert not by_element
