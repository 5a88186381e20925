"""Regret as one figure."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagom_jax.plan.regret import WORST_REGRET, regrets, regretted

TIMES = st.lists(st.floats(0.5, 2.0), min_size=20, max_size=20)


@given(st.lists(TIMES, min_size=1, max_size=5))
def test_by_every_model_something_is_the_best(some):
    for by_model in zip(*regrets(some), strict=True):
        assert min(by_model) == 0.0


def test_up_to_the_bound_only_the_mean_counts():
    even, uneven = [WORST_REGRET / 2] * 2, [0.0, WORST_REGRET]
    assert regretted(even) == regretted(uneven) == WORST_REGRET / 2


def test_beyond_the_bound_the_worst_counts_once_more():
    beyond = 0.01
    even, uneven = [WORST_REGRET] * 2, [WORST_REGRET - beyond, WORST_REGRET + beyond]
    assert regretted(uneven) == pytest.approx(regretted(even) + beyond)
