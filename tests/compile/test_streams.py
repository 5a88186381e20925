"""XLA's own compiler puts collectives on the streams that the pass names for them."""

import re
from collections import Counter

import pytest

from lagom_jax.compile import ScheduledOrder, Target, compile_step, lower
from lagom_jax.compile.schema import STREAM_ATTRIBUTE
from lagom_jax.hlo import read_module
from lagom_jax.plan import ScheduleEdit
from lagom_jax.plan.order import APPLIED
from lagom_jax.program.build import build_program
from lagom_jax.program.program import Launch, Stream
from tests.compile.conftest import TARGET_TEXT, hlo_text, mesh
from tests.compile.overlapping import OPTIONS, STARTS, overlapping_step

TARGET = Target("h100:1x8", TARGET_TEXT, "1x1x8")


@pytest.fixture(scope="module")
def lowered():
    step, arguments = overlapping_step(mesh(8))
    return lower(step, *arguments)


@pytest.fixture(scope="module")
def order(lowered):
    found = compile_step(lowered, TARGET, OPTIONS, capture=True)
    return ScheduledOrder.of(found.scheduled_bytes)


def launches(order):
    """Places in the step's own sequence."""
    opcodes = order.computations[-1].opcodes
    return [place for place, opcode in enumerate(opcodes) if opcode in STARTS]


def edited(order, aside):
    """All parameters and launches first, so that several are under way at once."""
    number = len(order.computations) - 1
    opcodes = order.computations[number].opcodes
    first = [n for n, opcode in enumerate(opcodes) if opcode == "parameter"]
    needed = dict.fromkeys(first)
    for place in launches(order):
        needed |= dict.fromkeys(sorted(_behind(order, place)))
    others = (n for n in range(len(opcodes)) if n not in needed)
    sequence = (*needed, *others)
    return ScheduleEdit(order.fingerprint, {number: sequence}, {number: tuple(aside)})


def _behind(order, place):
    """A place, and all that must stand before it."""
    found, pending = set(), [place]
    while pending:
        one = pending.pop()
        if one not in found:
            found.add(one)
            pending += order.computations[-1].needs(one)
    return found


def streams_in(folder):
    """How many launches each of XLA's streams for communication has."""
    (path,) = (
        found
        for found in folder.glob("*thunk_sequence.txt")
        if "communication_stream" in found.read_text()
    )
    found = re.findall(r"kAsyncStart.*communication_stream\[(\d+)\]", path.read_text())
    return {stream: found.count(stream) for stream in set(found)}


def launched(compiled, order):
    """The place of a launch; what is waited for at once is none in what is compiled."""
    program = build_program(read_module(compiled.module_bytes))
    first = next(node.task.name for node in program.body if isinstance(node, Launch))
    return order.computations[-1].names.index(first)


def streams_read(module_bytes):
    """The same, as this project reads it off the module."""
    program = build_program(read_module(module_bytes))
    found = Counter(node.stream for node in program.body if isinstance(node, Launch))
    return {
        number: found[stream]
        for number, stream in (("0", Stream.COLLECTIVE), ("1", Stream.ASIDE))
        if found[stream]
    }


def test_what_is_set_aside_runs_on_the_second_stream(lowered, order, tmp_path):
    plain = compile_step(lowered, TARGET, OPTIONS, order=edited(order, ()))
    edit = edited(order, [launched(plain, order)])
    options = {**OPTIONS, "xla_dump_to": str(tmp_path)}
    compiled = compile_step(lowered, TARGET, options, order=edit)
    assert compiled.order_outcome == APPLIED
    assert hlo_text(compiled.module_bytes).count(f'{STREAM_ATTRIBUTE}="1"') == 1
    seen = streams_in(tmp_path)
    assert seen.keys() == {"0", "1"}
    assert seen == streams_read(compiled.module_bytes)


def test_without_a_word_all_share_one_stream(lowered, order, tmp_path):
    options = {**OPTIONS, "xla_dump_to": str(tmp_path)}
    compiled = compile_step(lowered, TARGET, options, order=edited(order, ()))
    assert STREAM_ATTRIBUTE not in hlo_text(compiled.module_bytes)
    seen = streams_in(tmp_path)
    assert seen.keys() == {"0"}
    assert seen == streams_read(compiled.module_bytes)


def test_a_stream_alone_is_an_edit(lowered, order):
    place = launched(compile_step(lowered, TARGET, OPTIONS), order)
    edit = ScheduleEdit(order.fingerprint, {}, {len(order.computations) - 1: (place,)})
    assert not edit.keeps_everything
    compiled = compile_step(lowered, TARGET, OPTIONS, order=edit)
    assert compiled.order_outcome == APPLIED
    assert hlo_text(compiled.module_bytes).count(f'{STREAM_ATTRIBUTE}="1"') == 1


@pytest.mark.parametrize(
    ("place", "told"),
    [
        (0, "a parameter of main.*, launches nothing that has a stream"),
        (10_000, "there is no place 10000 in a sequence"),
    ],
)
def test_what_has_no_stream_is_refused(lowered, order, place, told):
    number = len(order.computations) - 1
    edit = ScheduleEdit(order.fingerprint, {}, {number: (place,)})
    compiled = compile_step(lowered, TARGET, OPTIONS, order=edit)
    assert re.search(told, compiled.order_outcome.why)
    assert STREAM_ATTRIBUTE not in hlo_text(compiled.module_bytes)
