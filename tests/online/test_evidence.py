"""The sequential test holds its error, however often it is looked at."""

import math

import numpy as np
import pytest

from lagom_jax.online.evidence import NOTHING_COMPARED
from lagom_jax.online.steps import MeasuredBeside, StepTime, beside, noise_of

NOISE = 0.01


def looked_at(gain, seed, looks=200, error=0.05):
    """After which look the test says faster; None if it never does."""
    dice, found = np.random.default_rng(seed), NOTHING_COMPARED
    for look in range(looks):
        ratio = -gain + NOISE * dice.normal() / math.sqrt(2)
        seen = MeasuredBeside(1, 0, ratio, NOISE**2 / 2, NOISE, 2)
        found = found.with_(seen)
        if found.proves_faster(error):
            return look
    return None


def test_what_is_not_faster_is_rarely_taken_for_it():
    wrong = sum(looked_at(0.0, seed) is not None for seed in range(400))
    assert wrong <= 0.05 * 400


@pytest.mark.parametrize(("gain", "looks"), [(0.05, 4), (0.02, 20)])
def test_what_is_faster_is_found_soon(gain, looks):
    found = [looked_at(gain, seed) for seed in range(50)]
    assert None not in found
    assert sorted(found)[25] <= looks


def test_faster_and_slower_are_one_law():
    seen = MeasuredBeside(1, 0, -0.05, 1e-5, NOISE, 3)
    faster = NOTHING_COMPARED.with_(seen).with_(seen)
    slower = NOTHING_COMPARED.with_(seen, turned=True).with_(seen, turned=True)
    assert faster.proves_faster(0.01)
    assert slower.proves_slower(0.01)
    assert faster.score == -slower.score


def steps(*seconds, candidate=0):
    return [StepTime(candidate, one) for one in seconds]


def test_a_steady_drift_is_taken_out():
    level = [1.0 * 1.002**n for n in range(40)]
    before, trial, rest = level[:12], level[12:15], level[15:27]
    found = beside(steps(*before), steps(*trial, candidate=1), steps(*rest))
    assert abs(found.log_ratio) < 1e-3


def test_a_lag_that_begins_in_the_middle_is_seen_as_doubt():
    calm = beside(
        steps(*[1.0] * 12), steps(1.08, 1.08, candidate=1), steps(*[1.0] * 12)
    )
    jump = beside(
        steps(*[1.0] * 12), steps(1.08, 1.08, candidate=1), steps(*[1.08] * 12)
    )
    assert jump.variance > 100 * calm.variance


def test_outliers_among_the_neighbours_change_nothing():
    usual, odd = [1.0] * 12, [1.0] * 10 + [9.0] * 2
    for before, rest in ((usual, odd), (odd, usual)):
        found = beside(steps(*before), steps(0.9, 0.9, candidate=1), steps(*rest))
        assert math.isclose(found.log_ratio, math.log(0.9), abs_tol=1e-6)


def test_too_few_neighbours_are_no_comparison():
    one = steps(1.0, candidate=1)
    assert beside(steps(1.0, 1.0), one, steps(*[1.0] * 12)) is None
    assert beside(steps(*[1.0] * 12), [], steps(*[1.0] * 12)) is None


def test_noise_is_what_steps_have_apart():
    dice = np.random.default_rng(0)
    logs = [0.1 * n + NOISE * dice.normal() for n in range(400)]
    assert (
        NOISE / 2 < noise_of([log - 0.1 * n for n, log in enumerate(logs)]) < 2 * NOISE
    )
