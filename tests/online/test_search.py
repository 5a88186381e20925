"""The search by measured steps, on machines that hide what they take."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lagom_jax.online.belief import StepCandidate
from lagom_jax.online.search import BURST, Search, SearchLimits, after, turns
from lagom_jax.online.steps import NEIGHBOURS, StepTime
from tests.online.machine import HiddenMachine

MODELS = 20


def candidates(expected, spread=0.03, seed=0):
    """Candidates by twenty models, the first of which none of them doubts."""
    dice = np.random.default_rng(seed)
    off = dice.normal(size=(len(expected), MODELS)) * spread
    off[0] = 0.0
    return [
        StepCandidate(str(n), seconds, tuple(seconds * np.exp(off[n])))
        for n, seconds in enumerate(expected)
    ]


def trained(search, machine, steps):
    """The search after so many steps, and all that happened."""
    events, ran = [], []
    while machine.steps < steps:
        asked = turns(search)
        if not asked:
            break
        times = [machine.step(candidate) for candidate in asked]
        ran += asked
        search = after(search, times)
        events += search.events
    return search, events, ran


def test_what_is_faster_runs_in_the_end_and_the_search_ends():
    search = Search.among(candidates([1.0, 0.9, 0.95]))
    machine = HiddenMachine([1.0, 0.9, 0.95], 0)
    search, events, _ = trained(search, machine, 5000)
    assert search.base == search.running == 1
    assert search.over
    assert [event.kind for event in events][-1] == "ended"
    assert "proved" in [event.kind for event in events]


def test_a_model_that_is_wrong_costs_a_few_steps():
    """All models promise ten percent, and the machine takes ten more."""
    search = Search.among(candidates([1.0, 0.9], spread=0.01))
    machine = HiddenMachine([1.0, 1.1], 0)
    search, _, ran = trained(search, machine, 5000)
    assert search.base == search.running == 0
    assert search.over
    assert ran.count(1) <= 3 * BURST


def test_what_no_model_thought_of_is_found():
    """Measured steps that surprise all models make all of them doubtful."""
    search = Search.among(candidates([1.0, 0.97, 0.98], spread=0.005))
    search, _, _ = trained(search, HiddenMachine([1.0, 1.0, 0.9], 0), 10_000)
    assert search.base == 2


@pytest.mark.parametrize("drift", [0.0, 0.1])
def test_drift_is_nobodys_gain(drift):
    wrong = 0
    for seed in range(30):
        search = Search.among(candidates([1.0, 0.99], seed=seed))
        machine = HiddenMachine([1.0, 1.0], seed, drift=drift)
        search, events, _ = trained(search, machine, 5000)
        wrong += any(event.kind == "proved" for event in events)
    # One of a hundred, by the error that is asked for.
    assert wrong <= 1


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.floats(0.8, 1.2), min_size=1, max_size=5),
    st.lists(st.floats(0.8, 1.2), min_size=5, max_size=5),
    st.integers(0, 1000),
)
def test_no_more_steps_are_spent_than_may_be(expected, truth, seed):
    search = Search.among(candidates([1.0, *expected], seed=seed))
    machine = HiddenMachine([1.0, *truth[: len(expected)]], seed)
    before = -1
    for _ in range(100):
        asked = turns(search)
        if not asked:
            break
        runs = search.running
        others = [candidate for candidate in asked if candidate != runs]
        assert len(set(others)) <= 1, "never two changes at once"
        assert len(others) <= BURST
        search = after(search, [machine.step(candidate) for candidate in asked])
        assert search.spent <= search.limits.allowed(search.steps)
        assert search.steps > before
        before = search.steps


def test_a_loss_that_is_expected_to_be_too_great_is_not_tried():
    search = Search.among(candidates([1.0, 1.2], spread=0.01))
    search, _, ran = trained(search, HiddenMachine([1.0, 0.5], 0), 2000)
    assert 1 not in ran


def test_steps_without_times_end_the_search():
    """Where all results are donated nobody can wait for one."""
    search = Search.among(candidates([1.0, 0.9]))
    for _ in range(50):
        asked = turns(search)
        if not asked:
            break
        rest = [c for c in asked if c == search.running]
        times = [StepTime(c, 1.0) for c in rest]
        if len(asked) > len(rest):
            # Of what is tried nothing is known but that it ran.
            times = [StepTime(1, 1.0, counts=False)] * (len(asked) - len(rest)) + times
        search = after(search, times)
    assert search.over
    assert search.base == 0


def test_the_first_step_of_a_program_does_not_count():
    search = Search.among(candidates([1.0, 0.9]))
    search = after(search, [StepTime(0, 1.0)] * NEIGHBOURS)
    asked = turns(search)
    slow = [StepTime(c, 0.9 if c else 1.0) for c in asked]
    slow[0] = StepTime(1, 60.0)
    search = after(search, slow)
    assert math.isclose(search.evidence.log_ratio, math.log(0.9), abs_tol=1e-6)


def test_a_challenger_that_is_likely_faster_runs_before_it_is_proved():
    limits = dataclasses.replace(SearchLimits(), error=1e-12)
    search = Search.among(candidates([1.0, 0.9]), limits)
    search, events, _ = trained(search, HiddenMachine([1.0, 0.9], 0), 60)
    assert "runs" in [event.kind for event in events]
    assert search.running == 1
    assert search.base == 0
