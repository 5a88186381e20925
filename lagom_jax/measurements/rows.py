"""Rows of tables, measured or to be predicted, and the tasks that they describe."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np

from lagom_jax.cluster import Cluster
from lagom_jax.errors import MeasurementError
from lagom_jax.hlo.collective import Collective
from lagom_jax.hlo.elements import element_bytes
from lagom_jax.hlo.groups import Groups
from lagom_jax.hlo.kinds import POINT_TO_POINT
from lagom_jax.hlo.matmul import Matmul
from lagom_jax.hlo.work import Work
from lagom_jax.measurements.spelled import collective_kind, product_types, version_in
from lagom_jax.measurements.table import Cells, RowError, given, parse_table, whole
from lagom_jax.program.program import Kernel

COLLECTIVE_COLUMNS = (
    "gpu",
    "op",
    "devices",
    "groups",
    "group_size",
    "tensor_bytes",
)
MATMUL_COLUMNS = ("gpu", "batch", "m", "n", "k", "types")
MEASURED = "microseconds"
"""The column of what was measured."""


@dataclasses.dataclass(frozen=True, slots=True)
class CollectiveRow:
    """One collective."""

    gpu: str
    op: str
    devices: int
    """GPUs that took part; of a collective-permute, pairs of source and target."""
    groups: int | None
    group_size: int | None
    tensor_bytes: int
    """On the larger side."""
    microseconds: float = 0.0
    """0 where nobody measured it."""
    hosts: int = 0
    """Hosts that the GPUs were on; 0 where nobody said, then they fill hosts."""
    nccl: str = ""
    """Its version; empty where nobody said."""
    network_bytes_per_s: float = 0.0
    """Of each GPU and direction, between hosts; 0 for that of the GPU's system."""
    line: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class MatmulRow:
    """One matrix product."""

    gpu: str
    matmul: Matmul
    microseconds: float = 0.0
    """0 where nobody measured it."""
    line: int = 0


Row = TypeVar("Row", CollectiveRow, MatmulRow)


@dataclasses.dataclass(frozen=True, slots=True)
class Readings(Generic[Row]):
    """The rows of a file that could be read."""

    rows: tuple[Row, ...]
    skipped: tuple[str, ...]
    """Rows that could not be used, with line numbers."""


def collective_row(cells: Cells) -> CollectiveRow:
    """The collective that a row of a table names, whether it was measured or not.

    Args:
        cells: Of the columns `COLLECTIVE_COLUMNS`, and any others.

    Raises:
        RowError: The row says something impossible.

    Example:
        >>> row = {"gpu": "h100", "op": "all-gather", "devices": "8"}
        >>> row |= {"groups": "1", "group_size": "8", "tensor_bytes": "1048576"}
        >>> collective_row(row).group_size
        8
    """
    op = collective_kind(cells["op"].strip())
    devices = whole(cells, "devices")
    groups = size = None
    if op not in POINT_TO_POINT:
        # All devices are one group where nobody said otherwise.
        groups = whole(cells, "groups") if given(cells, "groups") else 1
        size = devices // groups
        if given(cells, "group_size"):
            size = whole(cells, "group_size")
        if groups * size > devices or not size:
            raise RowError(f"{groups} groups of {size} do not fit on {devices} devices")
    hosts = whole(cells, "hosts") if given(cells, "hosts") else 0
    if hosts > devices:
        raise RowError(f"{devices} devices cannot be on {hosts} hosts")
    return CollectiveRow(
        gpu=cells["gpu"].strip(),
        op=op,
        devices=devices,
        groups=groups,
        group_size=size,
        tensor_bytes=whole(cells, "tensor_bytes", 0),
        hosts=hosts,
        nccl=version_in(given(cells, "nccl")),
        network_bytes_per_s=_network(cells),
    )


def _network(cells: Cells) -> float:
    text = given(cells, "network_gbytes_per_gpu")
    try:
        rate = float(text or 0) * 1e9
    except ValueError:
        rate = -1.0
    if not 0 <= rate < float("inf") or (text and not rate):
        raise RowError(f"network_gbytes_per_gpu is {text!r}, not a rate in GB/s")
    return rate


def matmul_row(cells: Cells) -> MatmulRow:
    """The product that a row of a table names, whether it was measured or not.

    Args:
        cells: Of the columns `MATMUL_COLUMNS`, and any others.

    Raises:
        RowError: The row says something impossible.

    Example:
        >>> row = {"gpu": "h100", "batch": "1", "types": "bf16xbf16->f32"}
        >>> matmul_row(row | {"m": "64", "n": "32", "k": "16"}).matmul.out
        'f32'
    """
    types = product_types(cells["types"])
    batch, m, n, k = (whole(cells, name) for name in ("batch", "m", "n", "k"))
    matmul = Matmul(batch, m, n, k, *types)
    return MatmulRow(cells["gpu"].strip(), matmul)


def read_collectives(text: str, origin: str = "the table") -> Readings[CollectiveRow]:
    r"""Reads measured collectives.

    Args:
        text: CSV with the columns `gpu`, `op`, `devices`, `groups`, `group_size`,
            `tensor_bytes` and `microseconds`. `groups` and `group_size` are empty for a
            collective-permute, whose `devices` are pairs.
        origin: The name of the file, for messages.

    Raises:
        MeasurementError: A column is missing, or no row can be used.

    Example:
        >>> read_collectives(
        ...     "gpu,op,devices,groups,group_size,tensor_bytes,microseconds\n"
        ...     "h100,all-gather,8,1,8,1048576,24.5\n"
        ...     "h100,all-gather,8,1,8,huge,24.5\n"
        ... ).skipped
        ("line 3: tensor_bytes is 'huge', not a whole number",)
    """

    def read(cells: Cells) -> CollectiveRow:
        row = collective_row(cells)
        whole(cells, "tensor_bytes")
        return dataclasses.replace(row, microseconds=_time(cells))

    return _read(text, origin, COLLECTIVE_COLUMNS, read)


def read_matmuls(text: str, origin: str = "the table") -> Readings[MatmulRow]:
    """Reads measured matrix products.

    Args:
        text: CSV with the columns `gpu`, `batch`, `m`, `n`, `k`, `types` (such as
            `bf16xbf16->bf16`) and `microseconds`.
        origin: The name of the file, for messages.

    Raises:
        MeasurementError: A column is missing, or no row can be used.
    """

    def read(cells: Cells) -> MatmulRow:
        return dataclasses.replace(matmul_row(cells), microseconds=_time(cells))

    return _read(text, origin, MATMUL_COLUMNS, read)


def of_cluster(gpu: str, cluster: Cluster) -> bool:
    """True if a row's GPU is the cluster's, or if the row names none.

    Example:
        >>> h100 = Cluster.parse("h100:1x8")
        >>> of_cluster("h100-sxm", h100), of_cluster("b200", h100)
        (True, False)
    """
    known = (cluster.gpu.name, cluster.system.name)
    return not gpu or any(gpu == name or gpu.startswith(f"{name}-") for name in known)


def collective_of(
    row: CollectiveRow, cluster: Cluster, *, ring: bool = True
) -> Collective | None:
    """The collective that a row is about; None if the cluster is too small for it.

    Args:
        row: The row.
        cluster: Where it ran.
        ring: Whether the pairs of a permute are each GPU and the next; else nobody
            knows who sends to whom.
    """
    pairs = row.op in POINT_TO_POINT
    grouped = (row.groups or 1) * (row.group_size or row.devices)
    devices = max(2, row.devices) if pairs else grouped
    full = cluster.gpus_per_host
    hosts = row.hosts or -(-devices // full)
    each = -(-devices // hosts) if row.hosts else full
    if hosts > cluster.hosts or each > full:
        return None
    ids = np.arange(devices)
    ids = ids // each * full + ids % each
    if pairs:
        members = np.stack([ids, np.roll(ids, -1)], axis=1)[: row.devices]
    else:
        members = ids.reshape(row.groups or 1, -1)
    size = 1 if pairs else int(members.shape[1])
    operand = result = row.tensor_bytes
    if row.op == "all-gather":
        operand = row.tensor_bytes // size
    elif row.op == "reduce-scatter":
        result = row.tensor_bytes // size
    return Collective(
        kind=row.op,
        name=f"line {row.line}",
        operands=(("f32", operand),),
        result_bytes=result,
        groups=Groups(members, point_to_point=pairs, assumed=pairs and not ring),
        channel_id=1,
        is_sync=True,
        is_pipelined=False,
        one_shot_kernel=False,
        op_name="",
        source="",
    )


def kernel_of(row: MatmulRow) -> Kernel:
    """The kernel that a row is about."""
    one = row.matmul
    lhs, rhs, out = (element_bytes(name) for name in (one.lhs, one.rhs, one.out))
    read = one.batch * one.k * (one.m * lhs + one.n * rhs)
    written = one.batch * one.m * one.n * out
    work = Work("matmul", float(one.flops), round(read), round(written), (one,))
    return Kernel(f"line {row.line}", work)


def _read(
    text: str, origin: str, columns: tuple[str, ...], read: Callable[[Cells], Row]
) -> Readings[Row]:
    rows: list[Row] = []
    skipped: list[str] = []
    for outcome in parse_table(text, (*columns, MEASURED), origin).each(read):
        if outcome.result is None:
            skipped.append(f"line {outcome.line}: {outcome.problem}")
        else:
            rows.append(dataclasses.replace(outcome.result, line=outcome.line))
    if not rows:
        first = f" ({skipped[0]})" if skipped else ""
        raise MeasurementError(f"{origin} has no row that can be used{first}")
    return Readings(tuple(rows), tuple(skipped))


def _time(cells: Cells) -> float:
    text = cells[MEASURED].strip()
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise RowError(f"{MEASURED} is {text!r}, not a time")
    return value
