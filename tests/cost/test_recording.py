"""The record of a replay: the same times, each in its place."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagom_jax.cost.recording import record
from lagom_jax.cost.replay import replay
from lagom_jax.program.program import Launch, Loop, Stream

from .programs import ByName, collective, launch, program, run, wait
from .test_replay import BLOCKS, PRICES


def stretches(stretch, times=1):
    """Every stretch with the number of times that it runs."""
    yield stretch, times
    for loop in stretch.loops:
        for rounds in loop.rounds:
            for iteration in rounds.iterations:
                yield from stretches(iteration, times * rounds.times)


def lasting(step, found):
    return sum(times * sum(found(stretch)) for stretch, times in stretches(step))


def on_compute(stretch):
    return (p.end - p.begin for p in stretch.pieces if p.stream is Stream.COMPUTE)


def anywhere(stretch):
    return (piece.end - piece.begin for piece in stretch.pieces)


def elsewhere(stretch):
    return (p.end - p.begin for p in stretch.pieces if p.stream is not Stream.COMPUTE)


def standing(stretch):
    return (stall.end - stall.begin for stall in stretch.stalls)


def looped(before, body, trips):
    inner = Loop("inner", body, 2, True)
    return program(*before, Loop("outer", (*body, inner), trips, True))


@given(BLOCKS, BLOCKS, PRICES, st.integers(0, 30))
def test_the_record_adds_up_to_the_replay(before, body, prices, trips):
    step = looped(before, body, trips)
    timeline, found = record(step, ByName(prices))
    same = replay(step, ByName(prices))
    assert timeline.totals == same.totals
    assert found.seconds == pytest.approx(same.step_seconds)
    assert lasting(found, on_compute) + lasting(found, standing) == pytest.approx(
        same.step_seconds
    )
    everything = sum(times.seconds for times in same.tasks.values())
    assert lasting(found, anywhere) == pytest.approx(everything)


@given(BLOCKS, BLOCKS, PRICES, st.integers(0, 30))
def test_nothing_is_in_two_places_at_a_time(before, body, prices, trips):
    _, found = record(looped(before, body, trips), ByName(prices))
    for stretch, _ in stretches(found):
        lanes = {}
        for piece in stretch.pieces:
            lanes.setdefault(piece.stream, []).append((piece.begin, piece.end))
        lanes.setdefault(Stream.COMPUTE, []).extend(
            (one.begin, one.end) for one in (*stretch.stalls, *stretch.loops)
        )
        for lane in lanes.values():
            lane.sort()
            for (_, end), (begin, _) in itertools.pairwise(lane):
                assert begin >= end - 1e-9
            assert all(-1e-9 <= b <= e <= stretch.seconds + 1e-9 for b, e in lane)


def test_a_loop_keeps_one_of_iterations_that_are_alike():
    body = (launch("g", 1), run("k"), wait(1))
    step = program(Loop("layers", body, 1000, True))
    _, found = record(step, ByName({"g": 2.0, "k": 1.0}))
    (loop,) = found.loops
    assert sum(one.times * len(one.iterations) for one in loop.rounds) == 1000
    assert sum(len(one.iterations) for one in loop.rounds) <= 2
    assert loop.end == pytest.approx(2000.0)


def test_what_crosses_iterations_is_cut_and_goes_on():
    gather = collective("g")
    body = (wait(1), Launch(gather, Stream.COLLECTIVE, 1), run("k"))
    step = program(Launch(gather, Stream.COLLECTIVE, 1), Loop("l", body, 9, True))
    _, found = record(step, ByName({"g": 3.0, "k": 2.0}))
    pieces = [p for s, _ in stretches(found) for p in s.pieces if p.task is gather]
    assert any(not piece.stops for piece in pieces)
    assert any(not piece.starts for piece in pieces)
    assert lasting(found, elsewhere) == pytest.approx(30.0)


def test_a_loop_that_takes_no_time_parts_what_stands_before_and_after_it():
    gather = launch("g", 1)
    empty = Loop("l", (gather,), 1, True)
    _, found = record(program(gather, wait(1), empty), ByName({"g": 1.0}))
    assert [(stall.begin, stall.end) for stall in found.stalls] == [(0, 1), (1, 2)]


def test_launches_and_waits_are_written_down():
    _, found = record(
        program(launch("g", 7), run("k"), wait(7)), ByName({"g": 3.0, "k": 1.0})
    )
    (start,), (end,) = found.launches, found.waits
    assert (start.token, start.at) == (end.token, 0.0) == (7, 0.0)
    assert end.at == 3.0
    (stall,) = found.stalls
    assert (stall.begin, stall.end) == (1.0, 3.0)
