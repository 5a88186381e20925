"""The model's time for a row of a table, on the cluster that the row names."""

from __future__ import annotations

import functools
import math

from lagom_jax.cluster import Cluster
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.surface import load_surfaces
from lagom_jax.errors import ClusterError
from lagom_jax.measure.rows import collective_of, collective_row, kernel_of, matmul_row
from lagom_jax.measure.table import Cells, RowError

MEASURED_NAMES = {"h100-sxm": "h100", "a100-sxm": "a100", "h200-sxm": "h200"}
"""Spellings of the measurements -> systems."""
UNMEASURED_NAMES = {"gb300-nvl72": "gb200-nvl72"}
"""Systems without a record -> one with the same links that stands in."""


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
    model = _model(row.gpu, row.devices)
    collective = collective_of(row, model.cluster, ring=False)
    if collective is None:
        raise RowError(f"{row.devices} devices do not fit on {model.cluster.name}")
    return model.collective(collective).seconds * 1e6


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
    return _model(row.gpu, 1).kernel(kernel_of(row)).seconds * 1e6


def cluster_of(name: str, devices: int) -> Cluster:
    """The cluster of so many GPUs, on full hosts; a host may be left half empty.

    Raises:
        RowError: There is no such GPU or system.

    Example:
        >>> cluster_of("h100-sxm", 4).name, cluster_of("gb200-nvl72", 64).name
        ('h100:1x8', 'gb200-nvl72:16x4')
    """
    known = MEASURED_NAMES | UNMEASURED_NAMES
    if name not in known and name not in Cluster.names():
        choices = ", ".join(sorted({*Cluster.names(), *known}))
        raise RowError(f"gpu is {name!r}; known are {choices}")
    return _cluster(known.get(name, name), devices)


def estimated(name: str) -> str:
    """Why collectives on this GPU are estimated; empty where they are calibrated.

    Example:
        >>> estimated("gb300-nvl72"), estimated("h100-sxm")
        ('gb300-nvl72 is not measured; gb200-nvl72 stands in', '')
    """
    if name in UNMEASURED_NAMES:
        return f"{name} is not measured; {UNMEASURED_NAMES[name]} stands in"
    surfaces = load_surfaces(cluster_of(name, 1).gpu.name)
    return "" if surfaces.calibrated else f"{name} is {surfaces.source}"


@functools.cache
def _cluster(system: str, devices: int) -> Cluster:
    host = Cluster.parse(system).gpus_per_host
    try:
        return Cluster.parse(f"{system}:{math.ceil(devices / host)}x{host}")
    except ClusterError as error:
        raise RowError(str(error)) from None


@functools.cache
def _model(gpu: str, devices: int) -> CostModel:
    return CostModel.of(cluster_of(gpu, devices))
