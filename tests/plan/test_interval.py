"""Intervals: what lies in them, and gains that drown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagom_jax.errors import PlanError
from lagom_jax.plan import Interval, Uncertainty
from lagom_jax.plan.interval import OUTSIDE, SAME, drowns

TIMES = st.lists(st.floats(0.01, 10.0), min_size=1, max_size=60)


@given(TIMES, st.floats(0.01, 10.0))
def test_no_more_lie_outside_than_may(times, expected):
    found = Interval.of(expected, times)
    assert expected in found
    below = sum(time < found.low for time in times)
    above = sum(time > found.high for time in times)
    assert max(below, above) <= len(times) // OUTSIDE


def test_one_model_is_as_sure_as_it_gets():
    assert Interval.of(1.0, []) == Interval(1.0, 1.0, 1.0)


@pytest.mark.parametrize("ends", [(2.0, 1.0, 3.0), (0.0, 4.0, 3.0)])
def test_ends_are_in_order(ends):
    with pytest.raises(PlanError, match="not in order"):
        Interval(*ends)


@given(st.lists(st.tuples(st.floats(0.1, 9), st.floats(0.1, 9)), min_size=20))
def test_a_speedup_goes_model_by_model(pairs):
    before, after = zip(*pairs, strict=True)
    found = Uncertainty.of(1.0, 1.0, before, after)
    assert found.models == len(pairs)
    assert found.within == found.models - 2 * (found.models // OUTSIDE)
    assert found.slower == sum(a > b * (1 + SAME) for b, a in pairs)
    inside = sum(b / a in found.speedup for b, a in pairs)
    assert inside >= found.within


def test_a_gain_that_some_models_do_not_see_is_still_one():
    assert not drowns([0.1] * 5 + [0.0] * 15, 1.0)


def test_a_gain_that_two_models_of_twenty_call_a_loss_drowns():
    assert not drowns([0.1] * 19 + [-0.1], 1.0)
    assert drowns([0.1] * 18 + [-0.1] * 2, 1.0)
