"""Measured steps narrow what models left open, also for what has not run."""

import math

import numpy as np

from lagom_jax.online.belief import OWN_ERROR, Belief, StepCandidate
from lagom_jax.online.steps import MeasuredBeside


def alike(count=3, spread=0.05):
    """Candidates that every model finds faster, or none of them."""
    off = np.random.default_rng(0).normal(size=20) * spread
    one = [StepCandidate("as it is", 1.0, (1.0,) * 20)]
    return one + [
        StepCandidate(str(n), 0.9, tuple(0.9 * np.exp(off))) for n in range(count - 1)
    ]


def seen(candidate, ratio, sigma=0.002):
    return MeasuredBeside(candidate, 0, math.log(ratio), sigma**2, 0.01, 4)


def test_what_was_measured_is_believed():
    belief = Belief.of(alike()).with_(seen(1, 1.0))
    assert abs(belief.ratio(1, 0)) < 0.005
    assert belief.chance(1, 0, 0.02) < 0.01


def test_candidates_that_hang_together_move_together():
    before = Belief.of(alike())
    later = before.with_(seen(1, 0.98))
    assert later.ratio(2, 0) > before.ratio(2, 0) + 0.03
    assert later.sigma(2, 0) < before.sigma(2, 0)
    assert later.sigma(2, 0) > OWN_ERROR / 2, "each may be missed by itself"


def test_a_surprise_makes_all_models_doubtful():
    calm = Belief.of(alike(spread=0.01)).with_(seen(1, 0.9))
    surprised = Belief.of(alike(spread=0.01)).with_(seen(1, 1.3))
    assert calm.doubt == 1.0
    assert surprised.doubt > 1.0
    assert surprised.sigma(2, 0) > calm.sigma(2, 0)


def test_one_slow_comparison_among_many_weighs_little():
    belief = Belief.of(alike())
    for ratio in (0.95, 0.951, 0.949, 1.4):
        belief = belief.with_(seen(1, ratio))
    assert abs(belief.ratio(1, 0) - math.log(0.95)) < 0.005


def test_the_order_of_comparisons_does_not_matter():
    both = [seen(1, 0.95), seen(2, 0.97)]
    one, other = Belief.of(alike()), Belief.of(alike())
    for first, second in zip(both, reversed(both), strict=True):
        one, other = one.with_(first), other.with_(second)
    assert np.allclose(one.mean, other.mean)


def test_gain_is_what_knowing_would_win():
    belief = Belief.of(alike())
    assert belief.gain(1, 0) >= -belief.ratio(1, 0)
    assert belief.gain(0, 0) < 1e-5
