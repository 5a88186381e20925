"""Links, cadences, the replay of the link, and what is advised."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagom_jax.errors import ClusterError, RegionError
from lagom_jax.regions.advice import advise
from lagom_jax.regions.bandwidth_table import entries
from lagom_jax.regions.cadence import Cadence
from lagom_jax.regions.links import Wan
from lagom_jax.regions.utilisation import RegionModel, Training
from tests.command_line import lagom

WORK = RegionModel(1e9, 24, 0.1)


@pytest.fixture(scope="module")
def table():
    return list(entries())


def test_needed_bandwidth_is_within_a_quarter_of_what_was_published(table):
    assert len(table) == 75
    for entry in table:
        assert entry.ratio == pytest.approx(1, abs=0.25), entry


def test_methods_need_less_in_the_published_order(table):
    columns = {}
    for entry in table:
        columns.setdefault((entry.model, entry.utilisation), []).append(entry.predicted)
    assert len(columns) == 15
    for needed in columns.values():
        assert needed == sorted(needed, reverse=True)
        # 4 bits instead of 16.
        assert needed[-1] == pytest.approx(needed[-2] / 4, rel=0.02)


@given(
    st.integers(1, 400),
    st.integers(1, 8),
    st.integers(0, 40),
    st.floats(0.05, 1),
    st.floats(0, 60),
)
def test_adaptive_sends_stay_within_their_share(period, fragments, delay, use, takes):
    try:
        cadence = Cadence.adaptive_within(period, fragments, delay, use, takes)
    except RegionError:
        # Then it is really impossible.
        least = max(1, math.ceil(takes / use - 1e-9), math.ceil(delay / fragments))
        assert least * fragments > period or delay >= least * fragments
        return
    assert takes / cadence.interval <= use * (1 + 1e-9)
    assert cadence.interval * fragments <= period
    assert cadence.in_flight <= fragments


@given(st.integers(1, 400), st.integers(1, 8), st.integers(0, 60))
def test_sends_and_arrivals_pair_up(period, fragments, delay):
    try:
        cadence = Cadence.round_robin(period, fragments, delay)
    except RegionError:
        assert fragments > period or delay >= fragments * max(
            1, round(period / fragments)
        )
        return
    steps = range(1, 3 * period + 2)
    sent = [n + delay for n in steps if cadence.sends_after(n)]
    assert [n for n in steps if cadence.arrives_after(n)] == [
        n for n in sent if n in steps
    ]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["eu=1gbps"], "name its two ends"),
        (["eu-us"], "name its two ends"),
        ([], "must be a link"),
        (["a-b=1gbps", "c-d=1gbps"], "no link leads from a to c, d"),
    ],
)
def test_links_that_are_none_are_refused(words, says):
    with pytest.raises(RegionError, match=says):
        Wan.between(words)


@pytest.mark.parametrize("link", ["10", "10 gbps", "0gbps,1ms", "1gbps;1ms", "gbps"])
def test_rates_that_are_none_are_refused(link):
    with pytest.raises(ClusterError, match="write bandwidth and latency"):
        Wan.between([f"eu-us={link}"])


def test_a_link_of_ones_own_carries_one_message_and_a_shared_one_all():
    own = Wan.between(["a-b=1gbps", "b-c=1gbps", "a-c=1gbps"])
    chain = Wan.between(["a-b=1gbps", "b-c=1gbps"])
    assert chain.carried_bytes(6400, 4) == 2 * own.carried_bytes(6400, 4)
    assert chain.carried_bytes(6400, 32) == own.carried_bytes(6400, 32)


@given(st.floats(1e6, 1e12), st.floats(1.1, 10), st.integers(0, 3))
def test_more_bandwidth_and_more_delay_never_hurt(rate, more, delay):
    now = Training(WORK, 16, 40, 4, delay)
    later = Training(WORK, 16, 40, 4, delay + 1)
    assert now.utilisation(rate) <= now.utilisation(rate * more) + 1e-9
    assert now.utilisation(rate) <= later.utilisation(rate) + 1e-9
    assert 0 < now.utilisation(rate) <= 1


def test_a_fragment_that_takes_no_longer_than_its_delay_costs_nothing():
    # A quarter of a gigabyte in half a second, five steps of a tenth.
    training = Training(WORK, 8, 40, 4, delay=5)
    assert training.utilisation(0.25e9 / 0.5 * 1.001) == pytest.approx(1)
    assert training.utilisation(0.25e9 / 0.6) < 0.99


def test_fast_links_need_no_regions_and_slow_ones_longer_periods():
    assert advise(WORK, Wan.shared(2, "1tbps,1us")).best.strategy == "data parallel"
    fast, slow = (advise(WORK, Wan.shared(2, f"{n}gbps,80ms")).best for n in (10, 1))
    assert fast.period < slow.period
    assert advise(WORK, Wan.shared(2, "1mbps,80ms")).best is None


def test_every_choice_keeps_its_promises():
    found = advise(WORK, Wan.between(["eu-us=2gbps,80ms"]), link_use=0.3)
    assert {choice.strategy for choice in found.choices} == {
        *("data parallel", "diloco", "streaming", "cocodc")
    }
    for choice in found.choices:
        assert 0 < choice.utilisation <= 1
        if choice.strategy == "cocodc":
            assert choice.link_use <= 0.3 + 1e-9
        if choice.strategy in ("streaming", "cocodc"):
            assert choice.utilisation > 0.99
    assert found.best.utilisation >= found.target


PLAN = ("regions", "plan", "--model", "llama-3-8b", "--cluster", "h100:8x8")


def test_the_command_says_what_to_take(capsys):
    code, out, _ = lagom(capsys, *PLAN, "--links", "eu-us=10gbps,80ms", "--step", "0.4")
    assert code == 0
    assert 'Take lagom_jax.regions.streaming("region", period=25' in out
    code, out, _ = lagom(
        capsys, *PLAN, "--links", "eu-us=10gbps,80ms", "--step", "0.4", "--json"
    )
    document = json.loads(out)
    assert document["best"]["strategy"] == "streaming"
    assert document["step_seconds_are"] == "given"


def test_the_command_says_where_nothing_is_enough(capsys):
    code, out, _ = lagom(capsys, *PLAN, "--links", "eu-us=1kbps,80ms", "--step", "0.4")
    assert code == 1
    assert "No strategy reaches" in out


def test_the_command_explains_itself(capsys):
    code, _, errors = lagom(capsys, *PLAN, "--links", "eu-us=fast", "--step", "0.4")
    assert code == 2
    assert "10gbps,80ms" in errors
