import collections

from hypothesis import assume, given
from hypothesis import strategies as st

from lagom_jax.online.turns import BASELINE, TUNED, judge, schedule

TIMES = st.lists(st.floats(0.1, 10.0), min_size=3, max_size=30)


def test_both_sides_have_the_same_turns():
    steps = schedule()
    assert collections.Counter(steps)[BASELINE] == collections.Counter(steps)[TUNED]
    assert set(steps[:2]) == {BASELINE, TUNED}
    places = [n for n, side in enumerate(steps[2:]) if side == TUNED]
    others = [n for n, side in enumerate(steps[2:]) if side == BASELINE]
    assert sum(places) == sum(others), "a steady drift favours nobody"


@given(TIMES)
def test_the_same_is_not_faster(times):
    assert not judge(times, times).kept


@given(TIMES, TIMES)
def test_what_is_slower_is_never_kept(baseline, tuned):
    verdict = judge(baseline, tuned)
    assume(verdict.tuned_seconds >= verdict.baseline_seconds)
    assert not verdict.kept


@given(TIMES, st.floats(0.01, 0.9))
def test_without_noise_any_gain_counts(times, factor):
    steady = [1.0] * len(times)
    assert judge(steady, [factor] * len(times)).kept


def test_one_slow_step_does_not_decide():
    usual = [1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.0]
    assert judge([*usual, 60.0], [0.9 * time for time in usual]).kept
    assert judge(usual, [*(0.9 * time for time in usual), 60.0]).kept
    assert not judge([*usual, 60.0], usual).kept
