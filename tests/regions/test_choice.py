"""Adaptive transmission under random link times and rates: shares and deadlines hold."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lagom_jax.errors import RegionError
from lagom_jax.regions import Cadence
from lagom_jax.regions.choice import choose
from tests.depth import examples


def history(cadence, rates, steps):
    """Step and fragment of every send, in numpy but for the choice itself."""
    decide = jax.jit(lambda *a: choose(cadence, *a))
    last, air, sends = np.zeros(cadence.fragments, np.int32), [], []
    for step in range(cadence.interval, steps + 1, cadence.interval):
        air = [(at, p) for at, p in air if at + cadence.delay > step]
        flying = np.isin(np.arange(cadence.fragments), [p for _, p in air])
        p = int(decide(step, last, rates(step).astype(np.float32), flying))
        assert not flying[p]
        last[p] = step
        air.append((step, p))
        sends.append((step, p))
    return sends


@examples(by_day=12, by_night=250)
@given(
    st.integers(4, 60),
    st.integers(1, 5),
    st.floats(0, 8),
    st.floats(0.2, 1),
    st.integers(0, 4),
    st.sampled_from(["random", "always the same", "unknown"]),
    st.integers(0, 99),
)
def test_every_fragment_once_in_a_period_within_the_link_share(
    period, fragments, takes, use, latency, kind, seed
):
    delay = int(np.ceil(takes)) + latency
    try:
        cadence = Cadence.adaptive_within(period, fragments, delay, use, takes)
    except RegionError:
        assume(False)
    rng = np.random.default_rng(seed)
    rates = {
        "random": lambda _: rng.exponential(size=fragments),
        "always the same": lambda _: np.arange(fragments) ** 3.0,
        "unknown": lambda _: np.full(fragments, np.inf),
    }[kind]
    steps = 5 * period
    sends = history(cadence, rates, steps)
    for p in range(fragments):
        at = [0, *(step for step, q in sends if q == p)]
        gaps = np.diff([*at, steps]) if at[-1] + period < steps else np.diff(at)
        assert gaps.max() <= period
        assert steps - at[-1] <= period
    # In any stretch of time the link is in use no more than its share.
    assert len(sends) * takes <= use * steps * (1 + 1e-9)
    in_a_period = [
        sum(start < step <= start + period for step, _ in sends)
        for start in range(steps - period)
    ]
    assert max(in_a_period) <= cadence.sends


def test_the_fastest_goes_first_where_time_allows():
    cadence = Cadence.adaptive_within(100, 4, 0, 1.0, 1.0)
    last = jnp.array([50, 60, 70, 80])
    rates = jnp.array([1.0, 2.0, 9.0, 3.0])
    none = jnp.zeros(4, bool)
    assert int(choose(cadence, jnp.array(90), last, rates, none)) == 2
    # One step later the oldest would be too old.
    assert int(choose(cadence, jnp.array(150), last, rates, none)) == 0


def test_in_turn_is_as_published():
    cadence = Cadence.round_robin(100, 4, 5)
    zeros = jnp.zeros(4)
    found = [
        int(choose(cadence, jnp.array(n), zeros, zeros, zeros > 0))
        for n in (25, 50, 75, 100, 125)
    ]
    assert found == [1, 2, 3, 0, 1]


def test_what_cannot_be_kept_is_refused_with_what_would_do():
    with pytest.raises(RegionError, match="period of 52 at least"):
        Cadence.adaptive_within(30, 4, 5, 0.4)
    with pytest.raises(RegionError, match="fewer fragments"):
        Cadence.round_robin(3, 4, 0)
    with pytest.raises(RegionError, match="before it has arrived"):
        Cadence.round_robin(10, 2, 10)
    with pytest.raises(RegionError, match="link_use"):
        Cadence.adaptive_within(30, 4, 5, 1.4)
