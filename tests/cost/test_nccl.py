"""NCCL's choices and how a time depends on them."""

import dataclasses
import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagom_jax.cluster import Cluster
from lagom_jax.cost.arrays import Waits, counted, usual_of, waits_of
from lagom_jax.cost.collective import CollectiveTerms, collective_seconds
from lagom_jax.cost.constants import load_constants
from lagom_jax.cost.nccl_default import default_of, nccl_default, offered
from lagom_jax.cost.nccl_facts import nccl_facts
from lagom_jax.cost.nccl_time import structure_of
from lagom_jax.cost.peers import default_parts, parts_on
from lagom_jax.cost.span import Span
from lagom_jax.hlo.kinds import KINDS
from lagom_jax.plan.setting import Setting, SettingError, largest_chunk

H100 = Cluster.parse("h100:8x8")
HOST = Span(8, 1, 8)
SPREAD = Span(64, 8, 8)
SIZES = st.integers(1, 1 << 34)
GROUPED = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all")


@given(st.sampled_from(sorted(KINDS)), SIZES, st.sampled_from(Cluster.names()))
def test_the_default_is_a_setting_that_exists(kind, nbytes, name):
    cluster = Cluster.parse(f"{name}:16x{Cluster.parse(name).gpus_per_host}")
    for span in (
        Span(2, 1, 2),
        HOST,
        Span(cluster.devices, 1 + (cluster.devices > 72), 8),
    ):
        setting = nccl_default(kind, nbytes, span, cluster)
        assert (setting.algorithm, setting.protocol) in offered(kind, span, cluster)
        seconds = structure_of(kind, nbytes, span, nccl_facts(cluster), setting).seconds
        assert 0 < seconds < math.inf


def test_channels_of_a_small_message_are_those_it_fills():
    channels = [
        nccl_default("all-gather", 1 << bits, HOST, H100).channels
        for bits in range(4, 34)
    ]
    assert channels[0] == 1
    assert channels[-1] == nccl_facts(H100).channels


def test_simple_fills_all_channels_from_768_kib():
    """24 channels of 512 threads with 64 bytes each; below it, one less."""

    def channels(nbytes):
        # A kind for which NCCL has rings only.
        kind, facts = "collective-broadcast", nccl_facts(H100)
        return default_of(kind, float(nbytes), HOST, facts, "simple").channels

    assert channels(768 << 10) == 24
    assert channels((768 << 10) - 1) == 23
    assert channels((736 << 10) - 1) == 22


@pytest.mark.parametrize(
    ("cluster", "possible"),
    [
        ("h100:2x8", True),
        ("l40s:2x8", False),
        ("a40-pcie:1x2", False),
        ("a40-nvlink:2x8", False),
        ("a40-nvlink:1x4", False),
        ("a40-nvlink:4x2", True),
    ],
)
def test_ll128_is_for_gpus_that_reach_each_other_over_nvlink(cluster, possible):
    """A bridge joins two A40: a ring of more of them crosses PCIe on its way."""
    cluster = Cluster.parse(cluster)
    groups = [Span(cluster.gpus_per_host, 1, cluster.gpus_per_host)]
    groups.append(Span(cluster.devices, cluster.hosts, cluster.gpus_per_host))
    for kind, span in itertools.product(("all-gather", "all-reduce"), groups):
        protocols = {protocol for _, protocol in offered(kind, span, cluster)}
        assert ("ll128" in protocols) == possible


def test_the_choices_over_pcie_are_those_that_rows_show():
    """By the times of 512 KiB a gather is in LL, an all-reduce in Simple."""
    l40s = Cluster.parse("l40s:1x8")
    facts = nccl_facts(l40s, "2.27.3")
    chosen = {
        (kind, size): default_of(kind, size << 10, HOST, facts).protocol
        for kind in ("all-gather", "reduce-scatter", "all-reduce")
        for size in (128, 512, 1024)
    }
    simple = {key for key, protocol in chosen.items() if protocol == "simple"}
    assert simple == {
        ("all-gather", 1024),
        ("reduce-scatter", 1024),
        ("all-reduce", 512),
        ("all-reduce", 1024),
    }
    pair = [default_parts("all-to-all", s << 10, 2, facts) for s in (64, 128, 1 << 20)]
    assert [one.protocol for one in pair] == ["ll", "simple", "simple"]
    assert pair[-1].per_peer == 2


def test_the_ranking_of_the_worked_case():
    """Eight H100: 10.8, 27.3 and 32.2 us of latency for LL, LL128 and Simple."""
    facts = nccl_facts(H100)
    ring = facts.inside_microseconds["ring"]
    base = facts.base_microseconds["ring"]
    found = [base[p] + 7 * ring[p] for p in ("ll", "ll128", "simple")]
    assert found == pytest.approx([10.8, 27.3, 32.2], abs=0.05)
    protocols = [
        nccl_default("all-gather", nbytes, HOST, H100).protocol
        for nbytes in (1 << 10, 1 << 22, 1 << 30)
    ]
    assert protocols == sorted(protocols, key=["ll", "ll128", "simple"].index)
    assert protocols[0] == "ll"
    assert protocols[-1] == "simple"


def test_gpus_without_a_switch_that_reduces_have_no_nvls():
    assert ("nvls", "simple") in offered("all-reduce", HOST, H100)
    assert ("nvls", "simple") not in offered("all-reduce", HOST, Cluster.parse("a100"))


def test_settings_for_other_collectives_are_refused():
    setting = Setting.parse("tree/simple/8/640/524288")
    with pytest.raises(SettingError, match="it has ring/ll"):
        collective_seconds("all-gather", 1 << 20, HOST, H100, setting)


@given(st.sampled_from(GROUPED), SIZES, st.sampled_from([HOST, SPREAD]))
def test_naming_the_default_changes_nothing(kind, nbytes, span):
    default = nccl_default(kind, nbytes, span, H100)
    alone = collective_seconds(kind, nbytes, span, H100)
    assert collective_seconds(kind, nbytes, span, H100, default) == alone


@pytest.mark.parametrize("kind", GROUPED[:3])
@pytest.mark.parametrize("span", [HOST, SPREAD])
@pytest.mark.parametrize("nbytes", [1 << 16, 1 << 24, 1 << 31])
@pytest.mark.parametrize("protocol", ["ll", "ll128", "simple"])
def test_more_channels_help_until_the_link_is_full(kind, span, nbytes, protocol):
    setting = Setting("ring", protocol, 1, 512, largest_chunk("ring", protocol))
    times = [
        collective_seconds(
            kind, nbytes, span, H100, dataclasses.replace(setting, channels=channels)
        )
        for channels in range(1, 65)
    ]
    assert all(b <= a * (1 + 1e-12) for a, b in itertools.pairwise(times))
    if nbytes == 1 << 31:
        # Two channels instead of one halve the time, 64 instead of 48 do nothing.
        assert times[1] < 0.6 * times[0]
        assert times[63] > 0.97 * times[47]


@pytest.mark.parametrize("nbytes", [1 << 24, 1 << 31])
@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_the_best_chunk_is_between_overhead_and_fill(algorithm, nbytes):
    chunks = [512 << i for i in range(11)]
    times = [
        collective_seconds(
            "all-reduce",
            nbytes,
            SPREAD,
            H100,
            Setting(algorithm, "simple", 8, 512, chunk),
        )
        for chunk in chunks
    ]
    best = times.index(min(times))
    assert all(times[i] >= times[i + 1] for i in range(best))
    assert all(times[i] <= times[i + 1] for i in range(best, len(times) - 1))
    assert best > 0
    assert times[0] > 1.5 * times[best]


@given(SIZES, st.integers(2, 20), st.integers(2, 20))
def test_more_threads_never_slow_a_collective_down(nbytes, one, other):
    few, many = sorted((one, other))
    times = [
        collective_seconds(
            "all-gather",
            nbytes,
            HOST,
            H100,
            Setting("ring", "simple", 4, 32 * t, 65536),
        )
        for t in (few, many)
    ]
    assert times[1] <= times[0]


def test_protocols_trade_bandwidth_for_latency():
    def time(nbytes, protocol):
        chunk = largest_chunk("ring", protocol)
        setting = Setting("ring", protocol, 24, 512, chunk)
        return structure_of(
            "all-gather", nbytes, HOST, nccl_facts(H100), setting
        ).seconds

    assert time(1 << 10, "ll") < time(1 << 10, "ll128") < time(1 << 10, "simple")
    assert time(1 << 32, "ll") > 1.5 * time(1 << 32, "simple")
    assert time(1 << 32, "ll128") > time(1 << 32, "simple")


def test_many_small_arrays_beside_large_ones_cost_a_ring_each():
    """As measured on 4 A100 with NCCL 2.21.5: 96 arrays of 71 MB take 2.3 ms."""
    a100, span = Cluster.parse("a100:1x4"), Span(4, 1, 4)
    arrays = (30e3,) * 72 + (2.85e6,) * 24
    nbytes = sum(arrays)

    def time(nccl, arrays=()):
        return collective_seconds(
            "reduce-scatter", nbytes, span, a100, arrays=arrays, nccl=nccl
        )

    assert time("2.21.5", arrays) > 4 * time("2.21.5")
    assert time("2.21.5", (nbytes / 2,) * 2) < 1.3 * time("2.21.5")
    # From 2.22 on tiny ones have a protocol of their own.
    tiny = (6e3,) * 72 + (2.85e6,) * 24
    assert time("2.21.5", tiny) > 1.5 * time("2.22.3", tiny)
    # From 2.26.2 on those in LL count four times, and lie on four times the channels.
    placed_as_others = time("2.26.1", arrays) - time("2.26.1")
    assert 2e-4 < time("2.26.2", arrays) - time("2.26.2") < 0.4 * placed_as_others


def test_what_arrays_count_by_hand():
    """An all-reduce is there and back; the floor is of what that makes."""
    a100 = Cluster.parse("a100:1x8")
    before, after = nccl_facts(a100, "2.26.1"), nccl_facts(a100, "2.26.2")
    for kind, twice in (("all-gather", 1), ("reduce-scatter", 1), ("all-reduce", 2)):
        for facts, times in ((before, 1), (after, 4)):
            assert counted(kind, 1e6, "simple", facts) == twice * 1e6
            assert counted(kind, 1e6, "ll", facts) == twice * times * 1e6
            assert counted(kind, 1000.0, "ll", facts) == 16384


@pytest.mark.parametrize("kind", GROUPED[:3])
@pytest.mark.parametrize("nccl", ["2.21.5", "2.30.7"])
def test_arrays_in_turn_favour_the_protocol_that_waits_least(kind, nccl):
    """Each array of a channel waits anew, so more of them never lead to more waiting."""
    facts = nccl_facts(Cluster.parse("a100:1x8"), nccl)
    order = ["ll", "ll128", "simple"]
    found = [
        order.index(usual_of(kind, 3e7, (3e7 / count,) * count, HOST, facts).protocol)
        for count in (1, 2, 24, 48, 240, 480)
    ]
    assert found == sorted(found, reverse=True)
    # Up to 24 there is one for each channel.
    assert len(set(found[:3])) == 1
    if nccl == "2.21.5":
        assert len(set(found)) == 1
    elif kind != "all-reduce":
        assert found[-1] < found[0]


def test_waits_of_arrays_by_hand():
    """Four channels of 200 bytes: three arrays on the first, one on all others."""
    arrays = [(50.0, 3.0), (50.0, 4.0), (100.0, 5.0), (600.0, 7.0)]
    assert waits_of(arrays, 4) == Waits(longest=7.0, mean=7.0 / 4)
    # The second array ends on the second channel, beside the third.
    assert waits_of([(10.0, 1.0), (20.0, 2.0), (10.0, 4.0)], 2) == Waits(2.0, 1.5)
    assert waits_of([(8.0, 7.0)], 4) == Waits(0.0, 0.0)


def test_channels_that_have_done_their_arrays_hold_no_sm():
    a100, span = Cluster.parse("a100:1x4"), Span(4, 1, 4)
    constants = load_constants(a100, "2.21.5")

    def held(arrays):
        terms = CollectiveTerms.of(
            "reduce-scatter", 7.2e7, span, a100, constants, arrays
        )
        return terms.load(terms.price()).channels

    one, even = held(()), held((7.2e7 / 24,) * 24)
    assert one == even == 24
    assert held((100.0,) * 72 + (2.85e6,) * 24) < 8


RACK = nccl_facts(Cluster.parse("gb200-nvl72"), "2.28.9")


@pytest.mark.parametrize("ranks", [8, 16, 32, 64, 72])
@pytest.mark.parametrize("nbytes", [1 << 20, 1 << 26, 1 << 30, 1 << 34])
def test_parts_hold_the_whole_message(ranks, nbytes):
    parts = default_parts("all-to-all", nbytes, ranks, RACK)
    assert parts.part_bytes * parts.per_peer * ranks == pytest.approx(nbytes)
    assert parts.channels * parts.rounds >= ranks * parts.per_peer
    again = parts_on("all-to-all", nbytes, ranks, parts.channels, parts.protocol, RACK)
    assert again.serial_bytes == parts.serial_bytes


def test_parts_by_hand():
    """72 peers on 32 channels: three rounds. 8 peers: four channels for each."""
    assert default_parts("all-to-all", 72 << 20, 72, RACK).rounds == 3
    eight = default_parts("all-to-all", 64 << 20, 8, RACK)
    assert (eight.per_peer, eight.rounds, eight.channels) == (4, 1, 32)
    # 512 KiB is 16 KiB for each of 32 channels, the most that LL takes.
    assert default_parts("collective-permute", 512 << 10, 72, RACK).protocol == "ll"
    assert default_parts("collective-permute", 513 << 10, 72, RACK).protocol == "simple"
    # From 2.29.2 on it is 16 KiB for each channel that serves the pair: one of 72.
    later = nccl_facts(Cluster.parse("gb200-nvl72"), "2.29.2")
    assert default_parts("collective-permute", 17 << 10, 72, later).protocol == "simple"


def test_no_channel_has_a_part_of_less_than_64_kib():
    """So one channel serves a short message, and LL ends at its 16 KiB from 2.29.2."""
    later = nccl_facts(Cluster.parse("h100"), "2.29.2")
    for message, channels in ((1, 1), (64 << 10, 1), (65 << 10, 2), (1 << 20, 16)):
        parts = default_parts("all-to-all", 2 * message, 2, later)
        assert (parts.per_peer, parts.rounds) == (channels, 1)
        assert parts.part_bytes == min(message, 64 << 10)
        assert parts.protocol == ("ll" if message <= 16 << 10 else "simple")
    before = nccl_facts(Cluster.parse("h100"), "2.28.9")
    assert default_parts("all-to-all", 128 << 10, 2, before).protocol == "ll"
    # A setting with more channels leaves the rest of them idle.
    assert parts_on("collective-permute", 64 << 10, 2, 8, "simple", later).channels == 1
