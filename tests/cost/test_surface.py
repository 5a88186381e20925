"""Calibrated surfaces against the measurements, and where they must behave."""

import csv
import dataclasses
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lagom_jax.cost
from lagom_jax.cluster import Cluster
from lagom_jax.commands.rows import collective_microseconds
from lagom_jax.cost.collective import collective_seconds
from lagom_jax.cost.nccl_default import nccl_default
from lagom_jax.cost.span import Span, span_of, wire_bytes
from lagom_jax.cost.surface import load_record, load_surfaces
from lagom_jax.errors import ClusterError
from lagom_jax.hlo.groups import Groups
from lagom_jax.plan.setting import Setting

MEASURED = Path(lagom_jax.cost.__file__).parent / "measured"
GPUS = ("a100-sxm", "b200", "gb200-nvl72", "h100-sxm", "h200-sxm")
STREAMED = ("all-gather", "all-reduce", "reduce-scatter")


@pytest.mark.parametrize("folder", ["collectives", "constants/kernels"])
def test_a_record_of_times_names_its_gpu(folder):
    for path in (MEASURED.parent / folder).glob("*.json"):
        assert json.loads(path.read_text())["gpu"] == path.stem


@pytest.mark.parametrize("gpu", GPUS)
def test_rows_of_nccl_alone_are_met(gpu):
    large, small = [], []
    with (MEASURED / "nccl_alone.csv").open() as file:
        for row in csv.DictReader(file):
            if row["gpu"] == gpu:
                error = collective_microseconds(row) / float(row["microseconds"]) - 1
                big = int(row["tensor_bytes"]) >= 1 << 20
                (large if big else small).append(abs(error))
    assert np.median(large) < 0.03
    assert np.quantile(large, 0.9) < 0.15
    assert np.median(small) < 0.1


@pytest.mark.parametrize("gpu", ["h100-sxm", "b200", "gb200-nvl72"])
def test_rows_of_single_programs_are_met_with_their_launch(gpu):
    with (MEASURED / "collectives.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["gpu"] == gpu]
    large = [
        abs(collective_microseconds(row) / float(row["microseconds"]) - 1)
        for row in rows
        if int(row["tensor_bytes"]) >= 1 << 20
    ]
    assert np.median(large) < 0.06
    # The launch is part of the table alone.
    row = next(r for r in rows if r["op"] == "all-gather" and r["tensor_bytes"] < "2")
    assert collective_microseconds(row) >= collective_microseconds(row | {"nccl": ""})


def test_nccl_takes_twice_as_long_where_its_own_choice_is_bad():
    """16 MiB among 8 B200: LL128 in 2.28.9 takes half of Simple in 2.29.2."""
    b200, span = Cluster.parse("b200:1x8"), Span(8, 1, 8)

    def time(nccl, setting=None):
        return collective_seconds(
            "all-gather", 16 << 20, span, b200, setting, nccl=nccl
        )

    assert nccl_default("all-gather", 16 << 20, span, b200, "2.29.2").protocol == (
        "simple"
    )
    remedy = nccl_default("all-gather", 16 << 20, span, b200, "2.28.9")
    assert remedy.protocol == "ll128"
    assert time("2.29.2") > 1.4 * time("2.28.9")
    assert time("2.29.2", remedy) < 0.75 * time("2.29.2")


def test_a_version_that_was_measured_has_times_of_its_own():
    """64 KiB among two H100s: 8.0 us by 2.23, 6.3 by 2.29.2, as by any newer."""
    h100, span = Cluster.parse("h100:1x8"), Span(2, 1, 2)
    old, new, other = (
        collective_seconds("all-gather", 1 << 16, span, h100, nccl=nccl)
        for nccl in ("2.23", "2.29.2", "2.30.7")
    )
    assert old == pytest.approx(8.0e-6, rel=0.06)
    assert new == pytest.approx(6.3e-6, rel=0.06)
    assert other == new
    patch = collective_seconds("all-gather", 1 << 16, span, h100, nccl="2.23.4-1")
    assert patch == old


@pytest.mark.parametrize("kind", [*STREAMED, "all-to-all"])
def test_cards_that_go_through_the_processors_are_slower_the_more_there_are(kind):
    """Eight L40S take 20 times what two do, measured; four lie between."""
    l40s = Cluster.parse("l40s:1x8")
    two, four, eight = (
        collective_seconds(kind, 1 << 28, Span(n, 1, n), l40s) for n in (2, 4, 8)
    )
    assert 2 * two < four < eight / 2
    assert 14 * two < eight < 28 * two


def test_eight_cards_over_pcie_send_their_first_bytes_faster_in_simple():
    """1 MiB gathered among eight L40S took 0.51 ms, 8 MiB 6.1: 12 times as long."""
    l40s = Cluster.parse("l40s:1x8")
    for kind in STREAMED:
        one, eight, two = (
            collective_seconds(kind, mib << 20, Span(n, 1, n), l40s)
            for mib, n in ((1, 8), (8, 8), (1, 2))
        )
        assert eight > 8.5 * one
        form = load_surfaces("l40s", "pcie").of(kind).form
        plain = dataclasses.replace(form, first_bytes=0.0)
        link = l40s.inside.bytes_per_s
        times = {
            (ranks, protocol): [
                sum(which.parted(kind, 1 << 20, ranks, link, protocol))
                for which in (form, plain)
            ]
            for ranks in (2, 8)
            for protocol in ("ll", "simple")
        }
        faster = {key for key, (with_it, without) in times.items() if with_it < without}
        assert faster == {(8, "simple")}
        assert two < one


def test_sums_of_single_programs_take_longer_than_by_nccl_alone():
    """256 MiB among two H100s: reduced and scattered in 773 us, by NCCL in 586."""
    row = {"gpu": "h100-sxm", "devices": "2", "group_size": "2", "groups": "1"}
    row |= {"tensor_bytes": str(1 << 28)}
    longer = {
        op: collective_microseconds(row | {"op": op})
        / collective_microseconds(row | {"op": op, "nccl": "2.29.2"})
        for op in ("reduce-scatter", "all-gather")
    }
    assert longer["reduce-scatter"] == pytest.approx(773 / 586, rel=0.05)
    assert longer["all-gather"] == pytest.approx(1.0, rel=0.05)


def over_pcie(name, kind, ranks):
    pairs = ranks if kind == "collective-permute" else 0
    span = Span(ranks, 1, 1 if pairs else ranks, pairs)
    return collective_seconds(kind, 1 << 28, span, Cluster.parse(name))


@pytest.mark.parametrize("kind", [*STREAMED, "all-to-all", "collective-permute"])
@pytest.mark.parametrize("name", ["a40-pcie", "rtx-pro-6000"])
def test_what_nobody_measured_over_pcie_is_as_what_was_and_no_nvlink_card(name, kind):
    """A pair is as the measured pair; eight are estimated to share the processors."""
    measured = Cluster.parse("l40s")
    link = Cluster.parse(name).inside.bytes_per_s / measured.inside.bytes_per_s
    two, eight = (over_pcie(name, kind, ranks) for ranks in (2, 8))
    assert two * link == pytest.approx(over_pcie("l40s", kind, 2), rel=0.02)
    # All cards together send what two did: four times as long for what each sends, but
    # for the own piece that it copies.
    sent = wire_bytes(kind, 1.0, 8) / wire_bytes(kind, 1.0, 2)
    assert 0.7 * 4 * sent < eight / two < 1.05 * 4 * sent
    assert eight * link < over_pcie("l40s", kind, 8) / 3
    assert not load_surfaces(Cluster.parse(name).gpu.name, "pcie").calibrated


def test_a_gpu_measured_over_nvlink_borrows_over_pcie():
    own, over = load_surfaces("h100"), load_surfaces("h100", "pcie")
    assert own.calibrated
    assert not over.calibrated
    for kind in STREAMED:
        assert own.of(kind).form.fall == 0.0 < over.of(kind).form.fall
        l40s = load_surfaces("l40s", "pcie").of(kind).form
        of_its_host = {"first_bytes": 0.0, "first_saved": 0.0}
        assert over.of(kind).form == dataclasses.replace(l40s, fall=1.0, **of_its_host)


@pytest.mark.parametrize("name", ["a40-pcie", "l40s", "rtx-pro-6000"])
def test_a_permute_shares_the_processors_as_a_gather_does(name):
    """Both send from neighbour to neighbour; a permute of S is a gather of 8/7 S."""
    gather, permuted = (
        over_pcie(name, kind, 8) for kind in ("all-gather", "collective-permute")
    )
    assert gather < permuted < 2.2 * gather


EVERY_GPU = [
    "a40-pcie",
    "a100",
    "h100",
    "h200",
    "b200",
    "b300",
    "gb200-nvl72",
    "l40s",
    "rtx-pro-6000",
]


@pytest.mark.parametrize("kind", STREAMED)
@pytest.mark.parametrize("name", EVERY_GPU)
def test_a_protocol_that_carries_half_gains_nothing_for_large_messages(name, kind):
    """LL was never measured there: a correction of Simple must not make it a bargain."""
    cluster = Cluster.parse(name)
    for ranks, bits in itertools.product((2, 4, 8), (26, 28, 30)):
        span = Span(ranks, 1, ranks)
        usual = nccl_default(kind, 1 << bits, span, cluster)
        half = Setting("ring", "ll", usual.channels, 256, 32768)
        usual_time, half_time = (
            collective_seconds(kind, 1 << bits, span, cluster, setting)
            for setting in (usual, half)
        )
        assert half_time > usual_time


@pytest.mark.parametrize("name", ["a100", "h100", "h200", "b200", "gb200", "l40s"])
def test_the_records_tell_fitted_rows_from_those_kept_out(name):
    record = load_record(name)
    large = {key: sizes["1 MiB and more"] for key, sizes in record["errors"].items()}
    assert large["fitted"]["median"] < large["kept out: sizes"]["median"]
    assert all(kind["source"] for kind in record["kinds"].values())


@given(
    st.sampled_from(STREAMED),
    st.sampled_from(["h100", "b200", "gb200-nvl72"]),
    st.floats(3, 40),
    st.floats(0, 2),
)
def test_more_bytes_take_more_time_where_nccl_runs_them_alike(kind, name, bits, more):
    """Where it takes one more channel for them they may take less, within a protocol."""
    cluster = Cluster.parse(name)
    for ranks, domains in ((2, 1), (4, 1), (8, 1), (16, 2), (64, 8)):
        span = Span(ranks, domains, ranks // domains)
        sizes = 2.0**bits, 2.0 ** (bits + more)
        few, many = (nccl_default(kind, size, span, cluster) for size in sizes)
        small, big = (collective_seconds(kind, size, span, cluster) for size in sizes)
        if few == many:
            assert small <= big * (1 + 1e-9)
        elif few.protocol == many.protocol:
            assert small <= big * 1.2


@pytest.mark.parametrize("kind", [*STREAMED, "all-to-all"])
@pytest.mark.parametrize("name", ["h100", "b200", "gb200-nvl72"])
def test_far_beyond_the_measurements_only_the_bandwidth_counts(kind, name):
    cluster, span = Cluster.parse(name), Span(8, 1, 8)
    once, twice = (
        collective_seconds(kind, nbytes, span, cluster) for nbytes in (2e14, 4e14)
    )
    assert twice / once == pytest.approx(2, rel=1e-3)
    rate = 2e14 * 7 / 8 / once * (2 if kind == "all-reduce" else 1)
    assert 0.4 < rate / cluster.inside.bytes_per_s < 1.1


def test_half_the_link_takes_twice_as_long_for_large_messages():
    """An A40's surface is the A100's, on its own link."""
    span = Span(8, 1, 8)
    times = {
        name: collective_seconds("all-gather", 1e11, span, Cluster.parse(name))
        for name in ("a100", "a40-nvlink")
    }
    links = {name: Cluster.parse(name).inside.bytes_per_s for name in times}
    assert times["a40-nvlink"] / times["a100"] == pytest.approx(
        links["a100"] / links["a40-nvlink"], rel=0.02
    )


def test_a_permute_splits_its_message_past_16_mib():
    """As measured on a rack: the longer message is the faster one."""
    cluster = Cluster.parse("gb200-nvl72")
    span = Span(72, 1, 1, 72)
    sizes = (16 << 20, 18 << 20)
    whole, split = (
        collective_seconds("collective-permute", s, span, cluster) for s in sizes
    )
    assert split < 0.7 * whole


@pytest.mark.parametrize("name", ["h100", "b200"])
def test_a_channel_is_faster_where_gpus_send_or_receive_but_not_both(name):
    """As measured: 64 MiB take longer between eight pairs of GPUs than four."""
    cluster = Cluster.parse(name)
    few, all_of_them = (
        collective_seconds("collective-permute", 64 << 20, Span(8, 1, 1, n), cluster)
        for n in (4, 8)
    )
    assert few < 0.95 * all_of_them


def permute(cluster, pairs, **how):
    groups = Groups(np.array(pairs), point_to_point=True, **how)
    span = span_of(groups, cluster)
    return collective_seconds("collective-permute", 64 << 20, span, cluster)


@pytest.mark.parametrize("name", ["h100", "b200"])
def test_neighbours_that_swap_take_less_than_a_ring(name):
    """NCCL sends and receives in two rounds then, each with channels of its own."""
    cluster = Cluster.parse(name)
    ring = permute(cluster, [[i, (i + 1) % 8] for i in range(8)])
    swap = permute(cluster, [[i, i ^ 1] for i in range(8)])
    across = permute(cluster, [[i, (i + 4) % 8] for i in range(8)])
    one_way = permute(cluster, [[i, i + 1] for i in range(0, 8, 2)])
    assert swap < 0.8 * ring
    assert across == pytest.approx(ring)
    assert one_way < 0.8 * ring
    unknown = permute(cluster, [[i, (i + 1) % 8] for i in range(8)], assumed=True)
    assert unknown == pytest.approx(math.sqrt(ring * swap), rel=1e-6)


def test_a_rack_showed_one_rate_only():
    rack = Cluster.parse("gb200-nvl72")
    ring = [[i, (i + 1) % 72] for i in range(72)]
    assert permute(rack, ring, assumed=True) == permute(rack, ring)


def test_latency_grows_with_ranks():
    cluster = Cluster.parse("gb200-nvl72")
    times = [
        collective_seconds("all-gather", 65536, Span(n, 1, n), cluster)
        for n in (2, 4, 8, 16, 32, 64)
    ]
    assert times == sorted(times)
    assert math.isclose(times[-1], 94e-6, rel_tol=0.1)  # measured: 93.6


def test_a_gpu_without_a_record_is_refused():
    with pytest.raises(ClusterError, match=r"no measured collectives.*h100"):
        load_surfaces("h1000")
