"""Comparisons of steps with their neighbours."""

import dataclasses
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagom_jax.online.steps import (
    FEWEST_NEIGHBOURS,
    NEIGHBOURS,
    StepTime,
    beside,
    noise_of,
)

RATIOS = st.floats(0.5, 2.0)
SLOPES = st.floats(-0.01, 0.01)


def around(trial, level=lambda step: 1.0, noise=lambda: 1.0):
    """Three steps of a candidate of so many seconds, amid steps of one second."""
    steps = [
        StepTime(int(abs(n) <= 1), level(n) * noise() * (trial if abs(n) <= 1 else 1))
        for n in range(-NEIGHBOURS - 1, NEIGHBOURS + 2)
    ]
    return steps[:NEIGHBOURS], steps[NEIGHBOURS:-NEIGHBOURS], steps[-NEIGHBOURS:]


@given(RATIOS, SLOPES)
def test_a_steady_drift_changes_no_comparison(ratio, slope):
    found = beside(*around(ratio, lambda step: math.exp(slope * step)))
    assert math.isclose(found.log_ratio, math.log(ratio), abs_tol=1e-9)


@given(RATIOS, st.floats(2.0, 50.0), st.integers(0, 2))
def test_one_slow_step_of_three_is_no_slow_candidate(ratio, factor, place):
    before, trial, after = around(ratio)
    slow = StepTime(1, trial[place].seconds * factor)
    found = beside(before, [*trial[:place], slow, *trial[place + 1 :]], after)
    assert math.isclose(found.log_ratio, math.log(ratio), abs_tol=1e-9)


@given(RATIOS, st.floats(1.5, 3.0))
def test_where_the_level_jumps_less_is_known(ratio, factor):
    steady = beside(*around(ratio))
    jumped = beside(*around(ratio, lambda step: 1.0 if step < 2 else factor))
    assert jumped.variance > 100 * steady.variance


@pytest.mark.parametrize("neighbours", [FEWEST_NEIGHBOURS, NEIGHBOURS])
def test_its_variance_is_that_of_many_comparisons(neighbours):
    chance, found = random.Random(0), []
    for _ in range(600):
        before, trial, after = around(
            0.9, noise=lambda: math.exp(chance.gauss(0.0, 0.02))
        )
        compared = beside(before[-neighbours:], trial, after[:neighbours])
        # Of a few neighbours nobody knows the noise, so it is stated.
        known = 0.02 / compared.noise
        found.append(
            dataclasses.replace(compared, variance=compared.variance * known**2)
        )
    errors = [one.log_ratio - math.log(0.9) for one in found]
    spread = math.sqrt(sum(error**2 for error in errors) / len(errors))
    stated = math.sqrt(sum(one.variance for one in found) / len(found))
    assert 0.85 < spread / stated < 1.05
    assert abs(sum(errors) / len(errors)) < 0.003


def test_first_steps_of_a_program_do_not_count():
    before, trial, after = around(0.9)
    late = StepTime(1, 30.0, counts=False)
    assert beside(before, [late, *trial], after) == beside(before, trial, after)
    assert beside(before, [late], after) is None


def test_two_neighbours_are_too_few():
    before, trial, after = around(0.9)
    assert beside(before[:2], trial, after) is None
    assert beside(before, trial, after[:2]) is None


@given(SLOPES)
def test_drift_is_no_noise(slope):
    assert noise_of([slope * step for step in range(12)]) <= 1.1 * abs(slope) + 2e-4
