"""Clusters in regions: levels of links, prices between regions, what the report says."""

import json

import numpy as np
import pytest

from lagom_jax.api import analyze_dump
from lagom_jax.cluster import Cluster, topology
from lagom_jax.cost.between_regions import wan_bytes, wan_price
from lagom_jax.errors import ClusterError
from lagom_jax.hlo.groups import Groups
from tests.command_line import lagom, write_dump

TWO = "2*h100:1x8@10gbps,80ms"


def test_links_are_levels():
    cluster = Cluster.parse("4*h100:8x8@1gbps,100ms")
    assert (cluster.devices, cluster.hosts, cluster.regions) == (256, 32, 4)
    assert [link.kind for link in cluster.levels] == ["nvlink", "network", "wan"]
    latencies = [link.latency_s for link in cluster.levels]
    assert latencies == sorted(latencies)
    assert Cluster.parse(cluster.name) == cluster
    assert Cluster.parse("h100:8x8").levels[-1].kind == "network"
    assert topology(cluster) == topology(Cluster.parse("h100:32x8"))


def test_a_domain_ends_where_its_region_does():
    cluster = Cluster.parse("2*gb200-nvl72:9x4@10gbps,80ms")
    assert cluster.scale_up_size == cluster.region_size == 36


@pytest.mark.parametrize("name", ["h100:8x8@1gbps", "1*h100@1gbps", "2*h100@fast"])
def test_other_spellings_are_explained(name):
    with pytest.raises(ClusterError, match="gbps,"):
        Cluster.parse(name)


def test_bytes_that_leave_a_region():
    cluster = Cluster.parse(TWO)
    everyone = Groups(np.arange(16).reshape(1, 16))
    inside = Groups(np.arange(16).reshape(2, 8))
    across = Groups(np.arange(16).reshape(2, 8).T)
    assert wan_bytes("all-reduce", 1600, everyone, cluster) == 2 * 1500
    assert wan_bytes("all-reduce", 1600, inside, cluster) == 0
    assert wan_bytes("all-gather", 1600, across, cluster) == 8 * 800
    # Eight members each keep half of what they have.
    assert wan_bytes("all-to-all", 1600, everyone, cluster) == 8 * 800
    ring = Groups(np.array([[n, (n + 1) % 16] for n in range(16)]), point_to_point=True)
    assert wan_bytes("collective-permute", 1600, ring, cluster) == 1600
    assert wan_price("all-reduce", 1600, inside, cluster) is None


def test_time_between_regions_is_bytes_and_rounds():
    cluster = Cluster.parse(TWO)
    price = wan_price("all-reduce", 1.25e9, Groups(np.array([[0, 8]])), cluster)
    assert price.seconds == pytest.approx(1 + 2 * 0.08)
    assert price.bound == "wan"


def test_the_report_says_that_nothing_hides_it_and_how_much_less_to_send(
    tmp_path, capsys
):
    dump = write_dump(tmp_path, 16)
    report = analyze_dump(dump, TWO)
    (row,) = report.collectives
    assert row.bound == "wan"
    assert "no setting makes faster" in row.why
    assert report.wan_seconds == pytest.approx(row.seconds)
    assert report.wan_excess > 1000
    code, out, _ = lagom(capsys, "report", dump, "--cluster", TWO)
    assert code == 0
    assert "times less must be sent in a step" in " ".join(out.split())
    code, out, _ = lagom(capsys, "report", dump, "--cluster", TWO, "--json")
    assert json.loads(out)["wan_seconds"] == pytest.approx(row.seconds)


def test_without_regions_the_report_is_silent_of_them(tmp_path):
    report = analyze_dump(write_dump(tmp_path, 16), "h100:2x8")
    assert report.wan_seconds == 0
    assert not any("WAN" in note for note in report.notes)
