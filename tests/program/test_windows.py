"""Windows add up to the step, and are as small as what is under way lets them be."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagom_jax.cost.ledger import Ledger
from lagom_jax.cost.replay import Machine, replay
from lagom_jax.cost.timeline import Totals
from lagom_jax.program.program import Branch, Loop, Program, Stream
from lagom_jax.program.windows import windows

from ..cost.programs import ByName, launch, program, run, wait
from ..cost.test_contention import FACTORS, Slowing
from ..cost.test_replay import BLOCKS, NODES, PRICES
from ..depth import examples


def added_up(step, prices, contention):
    """The totals of the windows, each replayed on a machine of its own."""
    totals = Totals()
    for window in windows(step):
        machine, ledger = Machine(prices, contention), Ledger()
        for node in window.block:
            machine.node(node, ledger)
        machine.streams.drain(ledger)
        totals.add(ledger.totals, window.times)
    return totals


def sizes(step):
    return [(len(window.block), window.times) for window in windows(step)]


def deep(nodes):
    """Blocks with loops and branches in them."""
    blocks = st.lists(nodes, min_size=1, max_size=5).map(tuple)
    loops = st.builds(Loop, st.just("l"), blocks, st.integers(0, 12), st.just(True))
    branches = st.builds(Branch, st.just("b"), st.tuples(blocks, blocks))
    return st.one_of(nodes, loops, branches)


STEPS = st.lists(deep(deep(NODES)), max_size=10).map(lambda nodes: program(*nodes))


@given(STEPS, PRICES, FACTORS, st.sampled_from([0.5, 1.0]))
@examples(by_day=120, by_night=2000)
def test_windows_add_up_to_the_step(step, prices, factors, flying):
    contention = Slowing(factors, flying)
    whole = replay(step, ByName(prices), contention).totals
    found = added_up(step, ByName(prices), contention)
    assert found.step_seconds == pytest.approx(whole.step_seconds, rel=1e-9)
    assert dataclasses.asdict(found) == pytest.approx(
        dataclasses.asdict(whole), rel=1e-9, abs=1e-9
    )


@given(BLOCKS, BLOCKS, PRICES, FACTORS)
def test_a_long_loop_costs_as_its_windows(before, body, prices, factors):
    step = program(*before, Loop("l", body, 50, True))
    whole = replay(step, ByName(prices), Slowing(factors)).step_seconds
    found = added_up(step, ByName(prices), Slowing(factors)).step_seconds
    assert found == pytest.approx(whole, rel=1e-9)


@given(STEPS)
def test_every_task_is_in_a_window_as_often_as_in_the_step(step):
    def count(tasks):
        found = {}
        for task, times, sync in tasks:
            found[task, sync] = found.get((task, sync), 0) + times
        return found

    inside = (
        (task, window.times * times, sync)
        for window in windows(step)
        for task, times, sync in Program("", window.block, 1).tasks()
    )
    assert count(inside) == count(step.tasks())


def test_a_window_ends_where_all_is_waited_for():
    step = program(
        *(run("a"), launch("d", 1), launch("f", 2, Stream.SEND), run("a"), wait(1)),
        *(run("b"), wait(2), run("c"), run("c"), launch("d", 1), wait(1)),
    )
    assert sizes(step) == [(1, 1), (6, 1), (2, 1), (2, 1)]


def test_a_loop_over_whose_edge_something_is_under_way_stays_whole():
    """A pipelined loop: each iteration waits for what the one before launched."""
    shared = launch("d", 1)
    body = (wait(1), shared, run("a"))
    step = program(run("b"), shared, Loop("l", body, 8, True), run("c"), wait(1))
    assert sizes(step) == [(1, 1), (4, 1)]
    prices = ByName({"a": 1.0, "b": 1.0, "c": 5.0, "d": 3.0})
    assert (
        added_up(step, prices, None).step_seconds == replay(step, prices).step_seconds
    )


def test_a_loop_that_leaves_something_under_way_stays_whole():
    step = program(Loop("l", (run("a"), launch("d", 1)), 8, True), run("b"), wait(1))
    assert sizes(step) == [(3, 1)]


def test_what_a_loop_within_leaves_under_way_keeps_both_whole():
    shared = launch("d", 1)
    inner = Loop("inner", (wait(1), shared, run("a")), 2, True)
    step = program(Loop("outer", (shared, inner, run("b")), 3, True))
    assert sizes(step) == [(1, 1)]


def test_a_loop_beside_something_under_way_stays_whole():
    quiet = (launch("e", 2), run("a"), wait(2))
    step = program(launch("d", 1), Loop("l", quiet, 4, True), wait(1))
    assert sizes(step) == [(3, 1)]


def test_nested_loops_are_cut_inside():
    inner = Loop("inner", (launch("d", 1), run("a"), wait(1)), 5, True)
    step = program(Loop("outer", (inner, run("b")), 3, True))
    assert sizes(step) == [(3, 15), (1, 3)]


def test_a_branch_that_may_leave_something_under_way():
    """Which arm is taken depends on prices: what either leaves counts."""
    branch = Branch("b", ((launch("d", 1), wait(1)), (launch("e", 2),)))
    step = program(branch, run("a"), wait(2), run("b"))
    assert sizes(step) == [(3, 1), (1, 1)]


def test_an_empty_step_has_no_windows():
    assert windows(program()) == ()
