"""What a row of the measurements means: a cluster, and a collective or a matmul."""

from __future__ import annotations

import functools
import math

import numpy as np

from lagom_jax.cluster import Cluster
from lagom_jax.commands.table_rows import Cells, RowError, whole
from lagom_jax.cost.collective import collective_seconds
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.span import span_of
from lagom_jax.cost.surface import load_surfaces
from lagom_jax.errors import ClusterError
from lagom_jax.hlo.collective import KINDS, POINT_TO_POINT
from lagom_jax.hlo.groups import Groups
from lagom_jax.hlo.work import Matmul, Work
from lagom_jax.schedule.program import Kernel

COLLECTIVE_COLUMNS = (
    "gpu",
    "op",
    "devices",
    "groups",
    "group_size",
    "tensor_bytes",
)
MATMUL_COLUMNS = ("gpu", "batch", "m", "n", "k", "types")
MEASURED_NAMES = {"h100-sxm": "h100", "a100-sxm": "a100", "h200-sxm": "h200"}
"""Spellings of the measurements -> systems."""
UNMEASURED_NAMES = {"gb300-nvl72": "gb200-nvl72"}
"""Systems without a record -> one with the same links that stands in."""
_BYTES = {"bf16": 2, "f16": 2, "f32": 4, "f64": 8, "s8": 1, "s32": 4}


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
    kind = cells["op"].strip()
    if kind not in KINDS:
        raise RowError(f"op is {kind!r}; known are {', '.join(sorted(KINDS))}")
    devices = whole(cells, "devices")
    nbytes = whole(cells, "tensor_bytes", 0)
    cluster = cluster_of(cells["gpu"].strip(), devices)
    groups = _groups(cells, kind, devices)
    span = span_of(groups, cluster)
    return collective_seconds(kind, nbytes, span, cluster) * 1e6


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
    batch, m, n, k = (whole(cells, name) for name in ("batch", "m", "n", "k"))
    types = cells["types"].strip()
    operands, arrow, result = types.partition("->")
    lhs, times, rhs = operands.partition("x")
    if not (arrow and times):
        raise RowError(f"types is {types!r}; write LHSxRHS->RESULT: bf16xbf16->bf16")
    sizes = [_element_bytes(name) for name in (lhs, rhs, result)]
    matmul = Matmul(batch, m, n, k, lhs, rhs, result)
    read = batch * (m * k * sizes[0] + k * n * sizes[1])
    written = batch * m * n * sizes[2]
    work = Work("matmul", matmul.flops, round(read), round(written), (matmul,))
    prices = _prices(cluster_of(cells["gpu"].strip(), 1).name)
    return prices.kernel(Kernel("matmul", work)).seconds * 1e6


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
def _prices(cluster: str) -> CostModel:
    return CostModel.of(Cluster.parse(cluster))


def _groups(cells: Cells, kind: str, devices: int) -> Groups:
    if kind in POINT_TO_POINT:
        sources = np.arange(devices)
        pairs = np.stack([sources, (sources + 1) % max(2, devices)], axis=1)
        return Groups(pairs, point_to_point=True)
    groups, size = whole(cells, "groups"), whole(cells, "group_size")
    if groups * size > devices:
        raise RowError(f"{groups} groups of {size} do not fit on {devices} devices")
    return Groups(np.arange(groups * size).reshape(groups, size))


def _element_bytes(name: str) -> float:
    for family, size in (("f8", 1.0), ("f4", 0.5)):
        if name.startswith(family):
            return size
    if name not in _BYTES:
        known = ", ".join(sorted({*_BYTES, "f8e4m3fn", "f8e5m2"}))
        raise RowError(f"types has {name!r}; known are {known}")
    return _BYTES[name]
