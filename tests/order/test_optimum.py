"""Steps of which the best order is plain to see, and memory that is written over."""

import pytest

from lagom_jax.errors import HloError
from lagom_jax.order.find import find_order
from lagom_jax.order.sequence import Inner, sequence_of
from lagom_jax.program.build import Builder
from lagom_jax.settings.controls import named

from ..texts import parse
from .modules import (
    H100,
    MODEL,
    PART,
    WHOLE,
    add,
    gather,
    gathered,
    matmul,
    module,
    reduced,
    reduction,
    scatter,
    update,
)


def found(made, controls="sequence", **more):
    return find_order(made, H100, MODEL, controls=named(controls), **more)


def gathered_late():
    """Work that could hide a gather, and ends before it starts."""
    return module(
        matmul("work", "p0", "p1"),
        gather("start", "q0"),
        gathered("done", "start"),
        matmul("use", "work", "done"),
        "ROOT end = () tuple()",
    )


def names(made, ordering):
    old = [instruction.name for instruction in made.entry.sequence]
    if not ordering.sequences:
        return old
    # Number 0 is the sum of a reduction.
    return [old[place] for place in ordering.sequences[1]]


def needs(made):
    """For each instruction the names of those that must stand before it."""
    units = sequence_of(Builder(made), made.entry, Inner({}, {})).units
    name = {unit.number: unit.instructions[0].name for unit in units}
    return {name[u.number]: {name[n] for n in u.needs} for u in units}


def test_an_all_gather_starts_before_the_work_that_hides_it():
    made = gathered_late()
    ordering = found(made)
    order = names(made, ordering)
    assert order.index("start") < order.index("work") < order.index("done")
    assert ordering.after_seconds < 0.9 * ordering.before_seconds
    (moved,) = ordering.displacements
    assert moved.collective == "start"
    assert moved.start_change_seconds < -50e-6
    assert "earlier" in str(moved)


def test_what_is_needed_first_is_sent_first():
    made = module(
        gather("late", "q0"),
        gather("early", "q1"),
        gathered("early.done", "early"),
        matmul("first", "p0", "early.done"),
        gathered("late.done", "late"),
        matmul("second", "first", "late.done"),
        "ROOT end = () tuple()",
    )
    ordering = found(made)
    order = names(made, ordering)
    assert order.index("early") < order.index("late")
    assert order.index("late") < order.index("first")
    assert ordering.after_seconds < ordering.before_seconds


def test_a_collective_lies_beside_a_matmul_not_beside_a_copy():
    adds = [add(f"a{n}", "p0" if n == 0 else f"a{n - 1}", "p1") for n in range(8)]
    matmuls = [matmul("m0", "a7", "p1"), matmul("m1", "m0", "p1")]
    made = module(
        gather("start", "q0"),
        *adds,
        gathered("done", "start"),
        *matmuls,
        matmul("use", "m1", "done"),
        "ROOT end = () tuple()",
    )
    ordering = found(made)
    order = names(made, ordering)
    assert order.index("a7") < order.index("start") < order.index("m0")
    assert order.index("done") > order.index("m0")
    assert ordering.after_seconds < ordering.before_seconds


def test_a_search_ends_where_a_step_has_no_more_orders():
    made = gathered_late()
    few, many = found(made, evaluations=20_000), found(made, evaluations=200_000)
    assert many.evaluations < 30_000
    assert (many.sequences, many.after_seconds) == (few.sequences, few.after_seconds)


def test_nothing_to_gain_changes_nothing():
    made = module(matmul("work", "p0", "p1"), "ROOT end = () tuple()")
    ordering = found(made)
    assert ordering.sequences == {}
    assert ordering.after_seconds == ordering.before_seconds
    assert (ordering.displacements, ordering.live_bytes_change) == ((), 0)


def test_too_little_memory_keeps_a_gathered_array_from_coming_earlier():
    made = module(
        matmul("work", "p0", "p1"),
        matmul("more", "work", "p1"),
        matmul("less", "more", "work"),
        gather("start", "q0"),
        gathered("done", "start"),
        matmul("use", "less", "done"),
        "ROOT end = () tuple()",
    )
    free = found(made)
    takes = free.live_bytes_change
    assert found(made, spare_bytes=takes).live_bytes_change == takes > 0
    for spare in (0, takes - 1):
        bound = found(made, spare_bytes=spare)
        assert bound.live_bytes_change <= 0
        assert free.after_seconds < bound.after_seconds


def test_an_update_in_place_stays_behind_other_readers():
    made = module(
        add("buffer", "p0", "p1"),
        add("reader", "buffer", "p1"),
        update("written", "buffer", "q0", "index"),
        add("after", "written", "p1"),
        "ROOT end = () tuple()",
    )
    assert "reader" in needs(made)["written"]
    assert "reader" not in needs(made)["after"]


def test_a_scatter_writes_over_its_operand_behind_other_readers():
    made = module(
        add("buffer", "p0", "p1"),
        add("reader", "buffer", "p1"),
        "indices = s32[1] reshape(index)",
        scatter("written", "buffer", "indices", "q0"),
        add("after", "written", "p1"),
        "ROOT end = () tuple()",
    )
    assert "reader" in needs(made)["written"]
    assert "reader" not in needs(made)["after"]


def test_operands_of_a_start_are_not_written_over_before_its_done():
    made = module(
        add("buffer", "p0", "p1"),
        reduction("start", "buffer"),
        reduced("done", "start"),
        update("written", "buffer", "q0", "index"),
        "ROOT end = () tuple()",
    )
    assert "done" in needs(made)["written"]


LOOP = f"""
body {{
  carried = (s32[], {WHOLE}, {PART}) parameter(0)
  i = s32[] get-tuple-element(carried), index=0
  weights = {WHOLE} get-tuple-element(carried), index=1
  part = {PART} get-tuple-element(carried), index=2
  use = {WHOLE} dot(weights, weights), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  start = ({PART}, {WHOLE}) all-gather-start(part), channel_id=1, replica_groups={{{{0,1,2,3,4,5,6,7}}}}, dimensions={{0}}, use_global_device_ids=true
  more = {WHOLE} dot(use, use), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  done = {WHOLE} all-gather-done(start)
  ROOT next = (s32[], {WHOLE}, {PART}) tuple(i, done, part)
}}

condition {{
  carried = (s32[], {WHOLE}, {PART}) parameter(0)
  i = s32[] get-tuple-element(carried), index=0
  n = s32[] constant(8)
  ROOT less = pred[] compare(i, n), direction=LT
}}

ENTRY main {{
  arguments = (s32[], {WHOLE}, {PART}) parameter(0)
  ROOT loop = (s32[], {WHOLE}, {PART}) while(arguments), condition=condition, body=body, backend_config={{"known_trip_count":{{"n":"8"}}}}
}}
"""


def test_a_carried_value_is_not_written_before_it_was_read():
    """The next weights are gathered to where this iteration's are."""
    made = parse(LOOP, header=", num_partitions=8")
    body = next(c for c in made.computations.values() if c.name == "body")
    units = sequence_of(Builder(made), body, Inner({}, {})).units
    by_name = {unit.instructions[0].name: unit for unit in units}
    assert by_name["use"].number in by_name["start"].needs
    assert by_name["start"].number not in by_name["more"].needs


def test_a_module_without_a_schedule():
    made = parse("ENTRY e {\n  ROOT x = f32[] parameter(0)\n}", scheduled=False)
    with pytest.raises(HloError, match="not scheduled"):
        found(made)
