import json
import pickle
import subprocess
import sys

import pytest

from lagom_jax.cluster import Cluster, topology
from lagom_jax.errors import ClusterError


@pytest.mark.parametrize(
    ("text", "name", "devices", "scale_up_size", "xla_topology"),
    [
        ("h100:8x8", "h100:8x8", 64, 8, "8x1x8"),
        ("h100:64", "h100:8x8", 64, 8, "8x1x8"),
        ("h100:8", "h100:1x8", 8, 8, "1x1x8"),
        ("h100:4", "h100:1x4", 4, 4, "1x1x4"),
        ("h100", "h100:1x8", 8, 8, "1x1x8"),
        (" H100:2X4 ", "h100:2x4", 8, 4, "2x1x4"),
        ("a40-nvlink:2x8", "a40-nvlink:2x8", 16, 8, "2x1x8"),
        ("gb200-nvl72", "gb200-nvl72:18x4", 72, 72, "1x18x4"),
        ("gb200-nvl72:2x4", "gb200-nvl72:2x4", 8, 8, "1x2x4"),
        ("gb200-nvl72:72", "gb200-nvl72:18x4", 72, 72, "1x18x4"),
        ("gb200-nvl72:36x4", "gb200-nvl72:36x4", 144, 72, "2x18x4"),
        # 20 hosts are a full domain of 18 and one of 2: equal parts of 2.
        ("gb200-nvl72:20x4", "gb200-nvl72:20x4", 80, 72, "10x2x4"),
        ("h100:2048x8", "h100:2048x8", 16384, 8, "2048x1x8"),
    ],
)
def test_every_form_of_the_name(
    text: str, name: str, devices: int, scale_up_size: int, xla_topology: str
) -> None:
    cluster = Cluster.parse(text)
    assert cluster.name == name
    assert cluster.devices == devices
    assert cluster.scale_up_size == scale_up_size
    assert topology(cluster) == xla_topology
    assert Cluster.parse(cluster.name) == cluster


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "such as h100:8x8"),
        (":8x8", "such as h100:8x8"),
        ("h100:", "such as h100:8x8"),
        ("h100:8x", "such as h100:8x8"),
        ("h100:0x8", "such as h100:8x8"),
        ("h100:-1", "such as h100:8x8"),
        ("h100:8x8x8", "such as h100:8x8"),
        ("h100:12", "do not fill hosts of 8"),
        ("h100:4x16", "a host of this system has 8 GPUs, not 16"),
        ("h100:99999999x8", "too many"),
        ("h10:8x8", "did you mean 'h100'?"),
        ("gb200:18x4", "did you mean 'gb200-nvl72'?"),
        ("tpu-v5p:2x4", "Known: a100, a3-mega, a3-ultra, a4, a40-nvlink"),
        ("./nowhere.json:2x8", "cannot read the record nowhere.json"),
    ],
)
def test_a_mistake_is_explained(text: str, says: str) -> None:
    with pytest.raises(ClusterError) as error:
        Cluster.parse(text)
    assert says in str(error.value)


def test_domains_and_hosts_of_ranks() -> None:
    cluster = Cluster.parse("gb200-nvl72:20x4")
    assert cluster.domains_of(range(72)) == 1
    assert cluster.domains_of([71, 72]) == 2
    assert cluster.domains_of([79]) == 1
    assert cluster.domains_of([]) == 0
    assert cluster.hosts_of([0, 3]) == 1
    assert cluster.hosts_of([3, 4]) == 2
    assert cluster.hosts_of(range(80)) == 20
    pcie = Cluster.parse("a40-pcie:2x8")
    assert pcie.domains_of(range(8)) == 1
    assert pcie.domains_of(range(16)) == 2


@pytest.mark.parametrize("rank", [-1, 80, 83, 1000])
@pytest.mark.parametrize("method", [Cluster.domains_of, Cluster.hosts_of])
def test_ids_outside_the_cluster_are_refused(method, rank: int) -> None:
    with pytest.raises(ClusterError, match="0 to 79"):
        method(Cluster.parse("gb200-nvl72:20x4"), [0, rank])


@pytest.mark.parametrize("method", [Cluster.domains_of, Cluster.hosts_of])
def test_ids_past_a_last_domain_that_is_not_full_are_refused(method) -> None:
    cluster = Cluster.parse("gb200-nvl72:19x4")
    assert cluster.devices == 76
    with pytest.raises(ClusterError, match="0 to 75"):
        method(cluster, [76])


def test_the_paper_s_clusters_have_the_paper_s_bandwidths() -> None:
    nvlink, pcie = Cluster.parse("a40-nvlink:2x8"), Cluster.parse("a40-pcie:2x8")
    gigabit = 1e9 / 8
    assert nvlink.inside.bytes_per_s == 400 * gigabit
    assert nvlink.between.bytes_per_s * 8 == 2 * 400 * gigabit
    assert pcie.between.bytes_per_s * 8 == 100 * gigabit
    assert pcie.inside.kind == "pcie"
    assert (nvlink.gpu.nvlink_links, pcie.gpu.nvlink_links) == (4, 0)


@pytest.mark.parametrize("name", Cluster.names())
def test_a_cluster_travels_as_json_and_as_pickle(name: str) -> None:
    cluster = Cluster.parse(name)
    data = json.loads(json.dumps(cluster.as_dict(), allow_nan=False))
    assert data["name"] == cluster.name
    assert data["gpu"]["dense_flops_per_s"] == cluster.gpu.dense_flops_per_s
    copy = pickle.loads(pickle.dumps(cluster))
    assert copy == cluster
    assert hash(copy) == hash(cluster)
    assert copy.gpu.sources == cluster.gpu.sources


def test_the_room_does_without_jax() -> None:
    code = (
        "import sys, lagom_jax.cluster as room; room.Cluster.parse('h100:8x8');"
        "print([m for m in sys.modules if m.split('.')[0] in ('jax', 'jaxlib')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
