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


def test_what_is_beyond_the_bound_is_worse_than_anything_within():
    within, beyond = [WORST_REGRET] * 20, [0.0] * 19 + [1.01 * WORST_REGRET]
    assert regretted(within) < regretted(beyond)


def test_beyond_the_bound_the_worst_counts_once_more():
    one, other = [0.0, 2 * WORST_REGRET], [0.0, 3 * WORST_REGRET]
    assert regretted(other) - regretted(one) == pytest.approx(1.5 * WORST_REGRET)
