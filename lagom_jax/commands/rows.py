"""The model's time for a row of a table, on the cluster that the row names."""

from __future__ import annotations

import dataclasses
import functools
import math

from lagom_jax.cluster import Cluster
from lagom_jax.cluster.gpu_names import system_of
from lagom_jax.cost.constants import measured_networks
from lagom_jax.cost.matmul_loop import looped_seconds
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.surface import load_surfaces
from lagom_jax.errors import ClusterError, MeasurementError
from lagom_jax.measurements.rows import (
    collective_of,
    collective_row,
    matmul_row,
)
from lagom_jax.measurements.table import Cells, RowError


def collective_microseconds(cells: Cells) -> float:
    """The predicted time of a row of `collectives.csv`.

    Raises:
        RowError: The row says something impossible.

    Example:
        >>> row = {"gpu": "h100-sxm", "op": "all-gather", "devices": "8"}
        >>> row |= {"groups": "1", "group_size": "8", "tensor_bytes": "1073741824"}
        >>> 2600 < collective_microseconds(row) < 2900
        True
    """
    row = collective_row(cells)
    nccl = row.nccl
    if _launched(cells):
        # The published table's own version, where the GPU has one.
        nccl = load_surfaces(cluster_of(row.gpu, 1).gpu.name).nccl
    model = model_of(row.gpu, row.devices, row.hosts, row.network_bytes_per_s, nccl)
    collective = collective_of(row, model.cluster, ring=False)
    if collective is None:
        each, on = model.cluster.gpus_per_host, row.hosts or model.cluster.hosts
        raise RowError(f"{row.devices} devices do not fit on {on} hosts of {each}")
    seconds = model.collective(collective).seconds
    if _launched(cells):
        seconds = model.in_table(collective, seconds)
    return seconds * 1e6


def _launched(cells: Cells) -> bool:
    """True if a row is of a single program, whose time has the host's launch in it.

    Tables of NCCL alone say its version, or over how many hosts it ran.
    """
    return "nccl" not in cells and "hosts" not in cells


def matmul_microseconds(cells: Cells) -> float:
    """The predicted time of a row of `matmuls.csv`.

    Raises:
        RowError: The row says something impossible.

    Example:
        >>> row = {"gpu": "h100-sxm", "batch": "1", "types": "bf16xbf16->bf16"}
        >>> row |= {"m": "4096", "n": "4096", "k": "4096"}
        >>> 150 < matmul_microseconds(row) < 300
        True
    """
    row = matmul_row(cells)
    model = model_of(row.gpu, 1)
    # Benchmarks repeat a product, and so find in the cache what no step does.
    seconds = looped_seconds(row.matmul, model.cluster.gpu, model.constants.kernels)
    if "software" not in cells:
        # A table that does not say what ran the kernel alone has a part of its launch.
        seconds += model.constants.kernels.launch_in_table_seconds
    return seconds * 1e6


def cluster_of(name: str, devices: int) -> Cluster:
    """The cluster of so many GPUs, on full hosts; a host may be left half empty.

    Args:
        name: Of a GPU or a system, as tables spell them.
        devices: How many GPUs.

    Raises:
        RowError: There is no such GPU or system.

    Example:
        >>> cluster_of("h100-sxm", 4).name, cluster_of("gb200-nvl72", 64).name
        ('h100:1x8', 'gb200-nvl72:16x4')
    """
    system = system_of(name)
    if system is None:
        raise RowError(f"gpu is {name!r}; known are {', '.join(Cluster.names())}")
    return _cluster(system, devices)


def on_network(cluster: Cluster, bytes_per_s: float) -> Cluster:
    """The same hosts on a network of another rate.

    Hosts that one rents and whose network was measured go before others of that rate.

    Args:
        cluster: Hosts with their own network.
        bytes_per_s: Of each GPU and direction.

    Example:
        >>> h100 = Cluster.parse("h100:2x8")
        >>> on_network(h100, 25e9).system.name, on_network(h100, 12.5e9).system.name
        ('a3-mega', 'h100')
    """
    for name in measured_networks():
        system = Cluster.parse(name).system
        same = system.gpu.name == cluster.gpu.name
        if same and math.isclose(system.between.bytes_per_s, bytes_per_s):
            return dataclasses.replace(cluster, system=system)
    between = dataclasses.replace(cluster.between, bytes_per_s=bytes_per_s)
    system = dataclasses.replace(cluster.system, between=between)
    return dataclasses.replace(cluster, system=system)


def estimated(name: str) -> str:
    """Reason for estimated collectives on this GPU; empty where they are calibrated.

    Example:
        >>> estimated("gb300-nvl72"), estimated("h100-sxm")
        ('gb300-nvl72 is not measured; gb200 stands in: the same links', '')
    """
    cluster = cluster_of(name, 1)
    surfaces = load_surfaces(cluster.gpu.name, cluster.inside.kind)
    return "" if surfaces.calibrated else f"{name} is {surfaces.source}"


@functools.cache
def _cluster(system: str, devices: int) -> Cluster:
    host = Cluster.parse(system).gpus_per_host
    try:
        return Cluster.parse(f"{system}:{math.ceil(devices / host)}x{host}")
    except ClusterError as error:
        raise RowError(str(error)) from None


@functools.cache
def model_of(
    gpu: str,
    devices: int,
    hosts: int = 0,
    network_bytes_per_s: float = 0.0,
    nccl: str = "",
) -> CostModel:
    """The model that a row of a table is predicted with.

    Args:
        gpu: The row's name of the GPU or system.
        devices: GPUs that it needs.
        hosts: At least so many hosts.
        network_bytes_per_s: Of each GPU; by default the system's.
        nccl: NCCL's version; by default that of its record.

    Raises:
        RowError: One of them is impossible.
    """
    cluster = cluster_of(gpu, devices)
    cluster = dataclasses.replace(cluster, hosts=max(hosts, cluster.hosts))
    if network_bytes_per_s:
        cluster = on_network(cluster, network_bytes_per_s)
    try:
        return CostModel.of(cluster, nccl)
    except MeasurementError as error:
        raise RowError(str(error)) from None
