"""Prices of single tasks: formulas by hand, laws, and the measurements they fit."""

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
from lagom_jax.cost.compute import kernel_price
from lagom_jax.cost.constants import load_constants
from lagom_jax.cost.matmul import matmul_seconds
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.span import span_of, wire_bytes
from lagom_jax.errors import ClusterError
from lagom_jax.hlo.groups import Groups
from lagom_jax.hlo.kinds import KINDS
from lagom_jax.hlo.work import Matmul, Work

from .programs import collective

H100 = Cluster.parse("h100:8x8")
CONSTANTS = load_constants(H100)
MEASURED = Path(lagom_jax.cost.__file__).parent / "measured" / "collectives.csv"


def price(kind="all-gather", nbytes=1 << 28, ranks=range(8), cluster=H100):
    asked = collective("c", kind=kind, nbytes=nbytes, ranks=tuple(ranks))
    return CostModel.of(cluster).collective(asked)


@pytest.mark.parametrize("name", Cluster.names())
def test_every_known_cluster_has_prices(name):
    prices = CostModel.of(Cluster.parse(name))
    assert prices.source.startswith(("calibrated: ", "matmuls estimated: "))


def test_a_gpu_without_constants_is_refused():
    with pytest.raises(ClusterError, match=r"no kernel constants.*h100"):
        load_constants(
            dataclasses.replace(
                H100,
                system=dataclasses.replace(
                    H100.system, gpu=dataclasses.replace(H100.gpu, name="h1000")
                ),
            )
        )


@pytest.mark.parametrize(
    "path", sorted((MEASURED.parent.parent / "constants" / "estimated").glob("*.json"))
)
def test_every_estimate_has_a_source(path):
    record = json.loads(path.read_text())
    for name, item in record.get("kernels", record).items():
        assert item["source"], f"{path.name}: {name}"


def test_a_matmul_is_bound_by_arithmetic():
    matmul = Matmul(1, 8192, 8192, 8192, "bf16", "bf16", "bf16")
    found = kernel_price(
        Work("matmul", matmul.flops, 1 << 28, 1 << 27, (matmul,)), H100, CONSTANTS
    )
    assert found.bound == "arithmetic"
    assert found.seconds == matmul_seconds(matmul, H100.gpu, CONSTANTS.kernels)
    ideal = matmul.flops / H100.gpu.dense_flops_per_s["bf16"]
    assert found.resource_share == pytest.approx(ideal / found.seconds)


def test_a_copy_is_bound_by_memory():
    found = kernel_price(Work("copy", 0.0, 1 << 30, 1 << 30), H100, CONSTANTS)
    share = CONSTANTS.kernels.memory_shares["copy"]
    rate = H100.gpu.memory_bytes_per_s * share
    launch = CONSTANTS.kernels.launch_seconds
    assert found.bound == "memory"
    assert found.seconds == pytest.approx(2**31 / rate + launch)
    assert share - 0.05 < found.resource_share < share


def test_a_copy_to_the_host_is_bound_by_its_link():
    work = Work("host-copy", 0.0, 1 << 30, 0, host_bytes=1 << 30)
    assert kernel_price(work, H100, CONSTANTS).bound == "host link"


def test_a_tiny_kernel_costs_its_launch():
    found = kernel_price(Work("fusion", 8.0, 64, 64), H100, CONSTANTS)
    assert found.bound == "launch"
    assert found.seconds == pytest.approx(CONSTANTS.kernels.launch_seconds, rel=1e-3)


@pytest.mark.parametrize(
    "types", ["bf16", "f32", "f8e4m3fn", "s8", "f64", "c64", "s32"]
)
@pytest.mark.parametrize("name", Cluster.names())
def test_every_number_type_has_a_rate_on_every_gpu(name, types):
    matmul = Matmul(1, 4096, 4096, 4096, types, types, types)
    prices = CostModel.of(Cluster.parse(name))
    work = Work("matmul", matmul.flops, 1, 1, (matmul,))
    found = kernel_price(work, prices.cluster, prices.constants)
    assert 0 < found.seconds < 10


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("all-gather", 7), ("reduce-scatter", 7), ("all-to-all", 7), ("all-reduce", 14)],
)
def test_bytes_on_the_wire(kind, expected):
    assert wire_bytes(kind, 8, 8) == expected
    assert wire_bytes("collective-permute", 8, 8) == 8


def test_spans():
    assert span_of(Groups(np.arange(64)[None]), H100).domains == 8
    assert span_of(Groups(np.arange(64)[None]), H100).local == 8
    across = Groups(np.arange(64).reshape(8, 8).T)
    assert (span_of(across, H100).domains, span_of(across, H100).local) == (8, 1)
    pairs = Groups(np.array([[0, 1], [7, 8]]), point_to_point=True)
    assert span_of(pairs, H100).domains == 2


def test_the_network_limits_groups_with_few_members_in_a_host():
    inside = price(ranks=range(8))
    spread = price(ranks=range(0, 64, 8))
    assert inside.bound == "nvlink"
    assert spread.bound == "network"
    assert spread.seconds > 4 * inside.seconds


def test_members_of_a_host_share_the_cards_of_the_least():
    """One member of four is alone in its host, so that one card carries all."""
    uneven, even = (Groups(np.array([m])) for m in ((0, 1, 2, 8), (0, 1, 8, 9)))
    assert (span_of(uneven, H100).domains, span_of(uneven, H100).local) == (2, 1)
    assert span_of(even, H100).local == 2
    slow, fast = price(ranks=(0, 1, 2, 8)), price(ranks=(0, 1, 8, 9))
    assert slow.seconds > 1.5 * fast.seconds


@pytest.mark.parametrize(("hosts", "leaves"), [(2, 1 / 2), (4, 3 / 4), (8, 7 / 8)])
def test_all_to_all_uses_one_card_per_gpu(hosts, leaves):
    """What a GPU sends to other hosts, over its own card; the rest stays inside."""
    nbytes, cluster = 1 << 34, Cluster.parse(f"h100:{hosts}x8")
    network = load_constants(cluster).network
    found = price("all-to-all", nbytes, range(8 * hosts), cluster)
    assert found.bound == "network"
    transfer = leaves * nbytes / (cluster.between.bytes_per_s * network.efficiency)
    ramp = 1e-6 * network.ramp * math.sqrt(1e6 * transfer)
    # All but the latency, which is small beside so many bytes.
    assert transfer + ramp < found.seconds < transfer + ramp + 1e-3


def test_a_group_of_one_costs_a_launch():
    assert price(ranks=[3]).seconds == CONSTANTS.launch_seconds


def test_one_shot_kernels_cost_microseconds():
    asked = collective("c", kind="all-reduce", nbytes=4, one_shot_kernel=True)
    assert CostModel.of(H100).collective(asked).seconds < 2e-5


SIZES = st.integers(0, 1 << 34)


@given(st.sampled_from(sorted(KINDS)), SIZES, st.sampled_from(Cluster.names()))
def test_prices_are_times_and_shares_are_shares(kind, nbytes, name):
    cluster = Cluster.parse(name)
    if kind in ("collective-permute", "send", "recv"):
        pairs = Groups(np.array([[0, cluster.devices - 1]]), point_to_point=True)
        asked = collective("c", kind=kind, nbytes=nbytes, groups=pairs)
    else:
        asked = collective("c", kind=kind, nbytes=nbytes, ranks=range(cluster.devices))
    found = CostModel.of(cluster).collective(asked)
    assert 0 < found.seconds < math.inf
    assert 0 <= found.resource_share <= 1


def test_a_small_all_reduce_over_many_domains_grows_with_their_logarithm():
    times = [
        price("all-reduce", 1, range(8 * n), Cluster.parse(f"h100:{n}x8")).seconds
        for n in (2, 4, 8, 128)
    ]
    steps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert steps[0] == pytest.approx(steps[1], rel=0.01)
    assert steps[2] == pytest.approx(4 * steps[0], rel=0.01)
