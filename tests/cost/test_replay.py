"""Replays against closed forms, and laws that every replay obeys."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagom_jax.cost.replay import replay
from lagom_jax.program.program import Branch, Launch, Loop, Run, Stream

from ..depth import examples
from .programs import ByName, collective, launch, program, run, wait


def seconds_of(timeline):
    return {t.name: (f.seconds, f.exposed_seconds) for t, f in timeline.tasks.items()}


def test_nothing_overlaps():
    step = program(launch("c", 1), wait(1), run("k"))
    timeline = replay(step, ByName({"c": 3.0, "k": 5.0}))
    assert timeline.step_seconds == 8.0
    assert timeline.totals.exposed_seconds == 3.0
    assert timeline.totals.compute_seconds == 5.0


def test_everything_overlaps():
    step = program(launch("c", 1), run("k"), wait(1))
    timeline = replay(step, ByName({"c": 3.0, "k": 5.0}))
    assert timeline.step_seconds == 5.0
    assert timeline.totals.exposed_seconds == 0.0
    (figures,) = timeline.collectives().values()
    assert figures.hidden_seconds == 3.0
    assert [(k.name, s) for k, s in figures.beside.items()] == [("k", 3.0)]


def test_part_overlaps():
    step = program(launch("c", 1), run("k"), wait(1), run("l"))
    timeline = replay(step, ByName({"c": 7.0, "k": 5.0, "l": 1.0}))
    assert timeline.step_seconds == 8.0
    assert timeline.totals.exposed_seconds == 2.0


def test_two_collectives_share_a_stream():
    """The second starts when the first is done; compute waits for both."""
    step = program(launch("c", 1), launch("d", 2), run("k"), wait(2))
    timeline = replay(step, ByName({"c": 4.0, "d": 6.0, "k": 1.0}))
    assert timeline.step_seconds == 10.0
    assert seconds_of(timeline) == {"c": (4.0, 3.0), "d": (6.0, 6.0), "k": (1.0, 0.0)}


def test_streams_run_side_by_side():
    step = program(
        launch("c", 1), launch("d", 2, Stream.SEND), run("k"), wait(1), wait(2)
    )
    timeline = replay(step, ByName({"c": 4.0, "d": 6.0, "k": 1.0}))
    assert timeline.step_seconds == 6.0
    assert seconds_of(timeline)["d"] == (6.0, 2.0)


def test_a_wait_is_for_all_that_was_launched_under_its_token():
    """One start may launch onto several streams, and the first may end last."""
    step = program(launch("c", 1), launch("d", 1, Stream.SEND), wait(1), run("k"))
    timeline = replay(step, ByName({"c": 6.0, "d": 4.0, "k": 3.0}))
    assert timeline.step_seconds == 9.0
    assert timeline.totals.exposed_seconds == 6.0


def test_sync_collective_is_exposed():
    step = program(run("k"), Run(collective("c")), run("k2"))
    timeline = replay(step, ByName({"c": 4.0, "k": 1.0, "k2": 2.0}))
    assert timeline.step_seconds == 7.0
    assert timeline.totals.exposed_seconds == 4.0


def test_step_ends_when_all_streams_are_done():
    step = program(run("k"), launch("c", 1))
    timeline = replay(step, ByName({"c": 4.0, "k": 1.0}))
    assert timeline.step_seconds == 5.0
    assert timeline.totals.exposed_seconds == 4.0


def test_waiting_for_a_kernel_on_another_stream_is_not_communication():
    aside = Launch(run("a").task, Stream.ASYNC_COMPUTE, 1)
    timeline = replay(program(aside, run("k"), wait(1)), ByName({"a": 5.0, "k": 2.0}))
    assert timeline.step_seconds == 5.0
    assert timeline.totals.exposed_seconds == 0.0
    assert timeline.totals.waiting_seconds == 3.0
    assert timeline.totals.compute_seconds == 2.0


def test_nested_loops():
    inner = Loop("inner", (launch("c", 1), run("k"), wait(1)), 5, True)
    outer = Loop("outer", (inner, run("l")), 3, True)
    timeline = replay(program(outer), ByName({"c": 3.0, "k": 2.0, "l": 1.0}))
    assert timeline.step_seconds == 3 * (5 * 3.0 + 1.0)
    assert timeline.totals.exposed_seconds == 15.0
    assert {t.name: f.executions for t, f in timeline.tasks.items()} == {
        "c": 15,
        "k": 15,
        "l": 3,
    }


def test_pipelined_loop_hides_what_the_iteration_before_launched():
    """Prologue, then each iteration waits for the launch of the one before."""
    shared = launch("c", 1)
    body = (wait(1), shared, run("k"))
    step = program(shared, Loop("loop", body, 1000, True), wait(1))
    timeline = replay(step, ByName({"c": 3.0, "k": 2.0}))
    # One transfer at a time, the last computation behind the last transfer.
    assert timeline.step_seconds == pytest.approx(1001 * 3.0, rel=1e-12)
    timeline = replay(step, ByName({"c": 3.0, "k": 4.0}))
    assert timeline.step_seconds == pytest.approx(3.0 + 1000 * 4.0, rel=1e-12)
    assert timeline.totals.exposed_seconds == pytest.approx(3.0, rel=1e-9)


def test_a_million_trips_cost_no_time():
    body = (launch("c", 1), run("k"), wait(1))
    timeline = replay(
        program(Loop("loop", body, 10**6, True)), ByName({"c": 3.0, "k": 2.0})
    )
    assert timeline.step_seconds == pytest.approx(3e6, rel=1e-12)


def test_a_branch_costs_its_longest_arm():
    step = program(Branch("b", ((run("k"),), (run("l"),))))
    assert replay(step, ByName({"k": 1.0, "l": 4.0})).step_seconds == 4.0


def test_a_wait_for_what_never_ran_costs_nothing():
    assert replay(program(wait(7), run("k")), ByName({"k": 1.0})).step_seconds == 1.0


def test_an_empty_program():
    timeline = replay(program(), ByName({}))
    assert timeline.step_seconds == 0.0


# Few distinct names with prices that floats hold exactly, so that sums are exact.
NAMES = "abcdef"
PRICES = st.fixed_dictionaries(
    {name: st.integers(1, 64).map(lambda n: n / 8) for name in NAMES}
)
TASKS = {name: run(name) for name in "abc"}
LAUNCHES = {
    name: launch(name, i, stream)
    for i, (name, stream) in enumerate(
        zip("def", (Stream.COLLECTIVE, Stream.COLLECTIVE, Stream.SEND), strict=True)
    )
}
SYNC = Run(collective("d"))
NODES = st.one_of(
    st.sampled_from(list(TASKS.values())),
    st.sampled_from(list(LAUNCHES.values())),
    st.sampled_from([wait(0), wait(1), wait(2), wait(0, 2)]),
    st.just(SYNC),
)
BLOCKS = st.lists(NODES, min_size=1, max_size=8).map(tuple)


@given(BLOCKS, PRICES)
def test_the_parts_add_up_to_the_step(block, prices):
    timeline = replay(program(*block), ByName(prices))
    parts = (
        timeline.totals.compute_seconds
        + timeline.totals.exposed_seconds
        + timeline.totals.waiting_seconds
    )
    assert math.isclose(timeline.step_seconds, parts, rel_tol=1e-9, abs_tol=1e-12)
    for figures in timeline.tasks.values():
        assert -1e-12 <= figures.exposed_seconds <= figures.seconds + 1e-9
        assert sum(figures.beside.values()) <= figures.hidden_seconds + 1e-9


@given(BLOCKS, PRICES)
def test_a_step_is_between_its_bounds(block, prices):
    timeline = replay(program(*block), ByName(prices))
    longest_stream = max(
        [timeline.totals.compute_seconds]
        + [
            sum(prices[n.task.name] for n in block if getattr(n, "stream", 0) is stream)
            for stream in Stream
        ]
    )
    everything = sum(f.seconds for f in timeline.tasks.values())
    assert longest_stream - 1e-9 <= timeline.step_seconds <= everything + 1e-9


@given(BLOCKS, BLOCKS, PRICES, st.integers(0, 40))
@examples(by_day=100, by_night=2000)
def test_a_loop_equals_its_iterations_written_out(before, body, prices, trips):
    looped = replay(program(*before, Loop("l", body, trips, True)), ByName(prices))
    written = replay(program(*before, *(body * trips)), ByName(prices))
    assert math.isclose(looped.step_seconds, written.step_seconds, rel_tol=1e-9)
    assert math.isclose(
        looped.totals.exposed_seconds,
        written.totals.exposed_seconds,
        rel_tol=1e-9,
        abs_tol=1e-9,
    )
    assert {t.name: f.executions for t, f in looped.tasks.items()} == {
        t.name: f.executions for t, f in written.tasks.items()
    }


@given(BLOCKS, PRICES, st.sampled_from(NAMES))
def test_a_faster_task_never_makes_the_step_longer(block, prices, name):
    """True without contention: every start is a maximum of ends before it."""
    slow = replay(program(*block), ByName(prices)).step_seconds
    fast = replay(program(*block), ByName({**prices, name: prices[name] / 2}))
    assert fast.step_seconds <= slow + 1e-9
