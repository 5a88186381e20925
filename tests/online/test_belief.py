"""What measured steps make of what an ensemble says."""

import math

from hypothesis import given
from hypothesis import strategies as st

from lagom_jax.online.belief import Belief, StepCandidate
from lagom_jax.online.steps import MeasuredBeside

ONE, LIKE_IT, APART = 1, 2, 3


def belief():
    """Two candidates that models like or dislike together, and one for itself."""
    together = (0.8, 0.85, 0.9, 0.95, 1.0)
    return Belief.of(
        [
            StepCandidate("0", 1.0, (1.0,) * 5),
            StepCandidate("1", 0.9, together),
            StepCandidate("2", 0.9, together),
            StepCandidate("3", 0.9, (0.9, 0.95, 0.8, 0.95, 0.9)),
        ]
    )


def measured(candidate, ratio, other=0):
    return MeasuredBeside(candidate, other, math.log(ratio), 1e-6, 0.001, 3)


@given(st.floats(0.82, 1.1))
def test_what_was_measured_is_believed(ratio):
    found = belief().with_(measured(ONE, ratio)).with_(measured(ONE, ratio))
    assert math.isclose(math.exp(found.ratio(ONE, 0)), ratio, rel_tol=0.003)
    assert found.sigma(ONE, 0) < 0.003


def test_models_that_cannot_explain_it_lose_weight_for_all_candidates():
    before = belief()
    slow = before.with_(measured(ONE, 0.99))
    assert slow.ratio(LIKE_IT, 0) > before.ratio(LIKE_IT, 0) + 0.05
    assert slow.sigma(LIKE_IT, 0) < before.sigma(LIKE_IT, 0)
    assert abs(slow.ratio(APART, 0) - before.ratio(APART, 0)) < 0.02


def test_a_surprise_makes_the_models_less_believed():
    assert belief().with_(measured(ONE, 0.9)).doubt == 1.0
    surprised = belief().with_(measured(ONE, 2.0)).with_(measured(ONE, 2.0))
    assert surprised.doubt > 1.0
    assert surprised.sigma(APART, 0) > belief().sigma(APART, 0)


@given(st.floats(-0.1, 0.2))
def test_probabilities_are_of_the_same_two(by):
    found = belief()
    assert math.isclose(found.chance(1, 0, by) + found.chance(0, 1, -by), 1.0)
    assert found.gain(1, 0) >= max(0.0, -found.ratio(1, 0)) - 1e-12


def test_a_comparison_of_two_others_counts_too():
    found = belief().with_(measured(LIKE_IT, 0.9, other=ONE))
    assert found.ratio(LIKE_IT, ONE) < -0.05
    found = found.with_(measured(ONE, 1 / 0.9, other=LIKE_IT))
    assert math.isclose(found.ratio(LIKE_IT, ONE), math.log(0.9), abs_tol=0.005)
