"""Decisions by regret."""

from hypothesis import given
from hypothesis import strategies as st

from lagom_jax.plan.regret import WORST_REGRET, regrets
from lagom_jax.planner.regret import Scored, least_regret

TIME = st.floats(0.5, 2.0)


def scored(times, parts):
    return Scored(sum(times) / len(times), tuple(times), parts)


CANDIDATES = st.lists(
    st.tuples(st.lists(TIME, min_size=20, max_size=20), st.integers(1, 4)),
    max_size=5,
)


@given(st.lists(TIME, min_size=20, max_size=20), CANDIDATES)
def test_never_slower_than_the_default_in_more_than_one_model_of_twenty(default, more):
    candidates = [scored(default, 0), *(scored(*one) for one in more)]
    taken = candidates[least_regret(candidates)]
    slower = sum(
        own > usual + 2e-4 * candidates[0].seconds
        for own, usual in zip(taken.by_model, default, strict=True)
    )
    assert slower <= 1


def test_the_worst_is_bounded():
    """On average the first is better, and by one model it is a tenth slower."""
    risky = Scored(1.0, (0.98,) * 19 + (1.1,), 1)
    steady = Scored(1.0, (0.99,) * 19 + (1.0,), 1)
    assert sum(risky.by_model) < sum(steady.by_model)
    assert max(regrets([risky.by_model, steady.by_model])[0]) > WORST_REGRET
    assert least_regret([risky, steady]) == 1


def test_of_two_that_are_alike_the_simpler_one_is_taken():
    simple, busy = Scored(1.0, (1.0,) * 20, 1), Scored(1.0, (1.0 - 1e-6,) * 20, 3)
    assert least_regret([busy, simple]) == 1


def test_what_is_between_two_that_are_alike_has_to_be_worth_it_as_well():
    """The busiest is no better than the one between, which two models call a loss."""
    default = Scored(1.0, (1.0,) * 16 + (0.5,) * 2 + (1.0,) * 2, 0)
    between = Scored(1.0, (1.0,) * 18 + (0.5,) * 2, 1)
    busiest = Scored(0.9, (1.0,) * 15 + (0.5,) * 3 + (1.0,) * 2, 2)
    assert not busiest.is_better_than(between)
    assert not between.is_better_than(default)
    assert least_regret([default, between, busiest]) == 2


def test_what_helps_by_some_and_harms_by_none_is_taken():
    default = Scored(1.0, (1.0,) * 20, 0)
    helps = Scored(0.9, (0.9,) * 6 + (1.0,) * 14, 2)
    assert least_regret([default, helps]) == 1


def test_what_is_a_little_behind_by_few_and_far_ahead_by_most_is_worth_it():
    """By three models the order costs a thousandth, by the others it gives a tenth."""
    default = Scored(2.0, (2.0,) * 20, 0)
    plain = Scored(1.0, (1.0,) * 20, 1)
    ordered = Scored(0.9, (0.9,) * 17 + (1.001,) * 3, 2)
    assert not ordered.is_better_than(plain)
    assert least_regret([default, plain, ordered]) == 2


def test_what_may_cost_more_than_it_gives_is_not_worth_it():
    default = Scored(2.0, (2.0,) * 20, 0)
    plain = Scored(1.0, (1.0,) * 20, 1)
    risky = Scored(0.995, (0.995,) * 18 + (1.03,) * 2, 2)
    assert sum(risky.by_model) < sum(plain.by_model)
    assert least_regret([default, plain, risky]) == 1


def test_where_nothing_is_bounded_the_worst_counts_too():
    one = Scored(1.0, (1.0,) * 18 + (1.3, 1.0), 1)
    other = Scored(1.0, (1.02,) * 18 + (1.0, 1.1), 1)
    means = [sum(by_model) for by_model in regrets([one.by_model, other.by_model])]
    assert means[0] < means[1]
    assert least_regret([one, other]) == 1


def test_many_small_losses_do_not_outweigh_a_large_gain():
    """What it costs is weighed by how often, not by its second worst alone."""
    default = Scored(2.0, (2.0,) * 20, 0)
    plain = Scored(1.0, (1.0,) * 20, 1)
    mostly = Scored(0.98, (0.98,) * 15 + (1.015,) * 5, 2)
    assert least_regret([default, plain, mostly]) == 2
