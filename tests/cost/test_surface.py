"""Calibrated surfaces against the measurements, and where they must behave."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lagom_jax.cost
from lagom_jax.cluster import Cluster
from lagom_jax.cost.collective import collective_seconds
from lagom_jax.cost.nccl_default import nccl_default, simple_from
from lagom_jax.cost.nccl_facts import nccl_facts
from lagom_jax.cost.span import Span, span_of
from lagom_jax.cost.surface import load_record, load_surfaces
from lagom_jax.errors import ClusterError
from lagom_jax.hlo.groups import Groups

MEASURED = Path(lagom_jax.cost.__file__).parent / "measured" / "collectives.csv"
CLUSTERS = {"h100-sxm": "h100", "b200": "b200", "gb200-nvl72": "gb200-nvl72"}
STREAMED = ("all-gather", "all-reduce", "reduce-scatter")


def measured(gpu):
    """Kind, bytes, span and seconds of each measurement."""
    cluster = Cluster.parse(CLUSTERS[gpu])
    with MEASURED.open() as file:
        for row in csv.DictReader(file):
            if row["gpu"] == gpu:
                seconds = float(row["microseconds"]) * 1e-6
                devices = int(row["devices"])
                if gpu.startswith("gb"):
                    cluster = Cluster.parse(f"gb200-nvl72:{devices // 4}x4")
                if row["group_size"]:
                    ranks = int(row["group_size"])
                    span = Span(ranks, 1, ranks)
                else:
                    pairs = np.arange(devices)[:, None] + [[0, 1]]
                    groups = Groups(pairs % devices, point_to_point=True, assumed=True)
                    span = span_of(groups, cluster)
                nbytes = int(row["tensor_bytes"])
                yield row["op"], nbytes, span, cluster, seconds


@pytest.mark.parametrize("gpu", CLUSTERS)
def test_fitted_rows_are_met(gpu):
    large, small = [], []
    for kind, nbytes, span, cluster, seconds in measured(gpu):
        error = abs(collective_seconds(kind, nbytes, span, cluster) / seconds - 1)
        (large if nbytes >= 1 << 20 else small).append(error)
    assert np.median(large) < 0.05
    assert np.median(small) < 0.2


@pytest.mark.parametrize("name", ["h100", "b200", "gb200"])
def test_the_records_tell_fitted_rows_from_those_kept_out(name):
    record = load_record(name)
    for errors in (record["errors"], *(k["errors"] for k in record["kinds"].values())):
        large = {key: sizes["1 MiB and more"] for key, sizes in errors.items()}
        assert "kept out: sizes" in large
        assert large["fitted"]["median"] < large["kept out: sizes"]["median"]
    assert all(kind["source"] for kind in record["kinds"].values())


@given(
    st.sampled_from(STREAMED),
    st.sampled_from(["h100", "b200", "gb200-nvl72"]),
    st.floats(3, 40),
    st.floats(0, 2),
)
def test_more_bytes_take_more_time(kind, name, bits, more):
    cluster = Cluster.parse(name)
    for ranks in (2, 4, 8):
        span = Span(ranks, 1, ranks)
        small, big = (
            collective_seconds(kind, 2.0**x, span, cluster) for x in (bits, bits + more)
        )
        assert small <= big * (1 + 1e-9)


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
    """An A100's surface is the H100's, on its own link."""
    span = Span(8, 1, 8)
    times = {
        name: collective_seconds("all-gather", 1e11, span, Cluster.parse(name))
        for name in ("h100", "a100")
    }
    links = {name: Cluster.parse(name).inside.bytes_per_s for name in times}
    assert times["a100"] / times["h100"] == pytest.approx(
        links["h100"] / links["a100"], rel=0.02
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


@pytest.mark.parametrize("kind", STREAMED)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_latency_of_simple_comes_where_nccl_goes_over_to_it(kind, ranks):
    cluster, span = Cluster.parse("b200"), Span(ranks, 1, ranks)
    start = simple_from(kind, ranks, nccl_facts(cluster))
    assert nccl_default(kind, start, span, cluster).protocol == "simple"
    assert nccl_default(kind, start * 0.99, span, cluster).protocol != "simple"
    before, after, later = (
        collective_seconds(kind, start * share, span, cluster)
        for share in (0.999, 1.001, 1.003)
    )
    assert after - before > 10 * (later - after)


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
