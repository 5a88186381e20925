"""Tables of measurements, and the tasks that their rows describe."""

from __future__ import annotations

import csv
import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

import numpy as np

from lagom_jax.cluster import Cluster
from lagom_jax.errors import MeasurementError
from lagom_jax.hlo.collective import KINDS, POINT_TO_POINT, Collective
from lagom_jax.hlo.groups import Groups
from lagom_jax.hlo.matmul import Matmul
from lagom_jax.hlo.work import Work
from lagom_jax.schedule.program import Kernel

_TYPES = re.compile(r"(\w+)x(\w+)->(\w+)$")
Row = TypeVar("Row")


@dataclasses.dataclass(frozen=True, slots=True)
class CollectiveRow:
    """One measured collective."""

    gpu: str
    op: str
    devices: int
    """GPUs that took part; of a collective-permute, pairs of source and target."""
    groups: int | None
    group_size: int | None
    tensor_bytes: int
    """On the larger side."""
    microseconds: float
    hosts: int = 0
    """Hosts that the GPUs were on; 0 where nobody said, then they fill hosts."""
    line: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class MatmulRow:
    """One measured matrix product."""

    gpu: str
    matmul: Matmul
    microseconds: float
    line: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Table(Generic[Row]):
    """The rows of a file that could be read."""

    rows: tuple[Row, ...]
    skipped: tuple[str, ...]
    """What could not be used, with line numbers."""


def read_collectives(text: str, origin: str = "the table") -> Table[CollectiveRow]:
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
        ("line 3: tensor_bytes is 'huge'",)
    """
    columns = ("gpu", "op", "devices", "tensor_bytes", "microseconds")
    return _read(text, origin, columns, _collective_row)


def read_matmuls(text: str, origin: str = "the table") -> Table[MatmulRow]:
    """Reads measured matrix products.

    Args:
        text: CSV with the columns `gpu`, `batch`, `m`, `n`, `k`, `types` (such as
            `bf16xbf16->bf16`) and `microseconds`.
        origin: The name of the file, for messages.

    Raises:
        MeasurementError: A column is missing, or no row can be used.
    """
    columns = ("gpu", "batch", "m", "n", "k", "types", "microseconds")
    return _read(text, origin, columns, _matmul_row)


def of_cluster(gpu: str, cluster: Cluster) -> bool:
    """Whether a row's GPU is the cluster's; a row that names none is.

    Example:
        >>> h100 = Cluster.parse("h100:1x8")
        >>> of_cluster("h100-sxm", h100), of_cluster("b200", h100)
        (True, False)
    """
    known = (cluster.gpu.name, cluster.system.name)
    return not gpu or any(gpu == name or gpu.startswith(f"{name}-") for name in known)


def collective_of(row: CollectiveRow, cluster: Cluster) -> Collective | None:
    """The collective that a row is about; None if the cluster is too small for it."""
    pairs = row.op in POINT_TO_POINT
    devices = max(2, row.devices) if pairs else row.devices
    hosts = row.hosts or -(-devices // cluster.gpus_per_host)
    if devices > cluster.devices or hosts > cluster.hosts:
        return None
    each = -(-devices // hosts)
    if each > cluster.gpus_per_host:
        return None
    ids = np.arange(devices)
    ids = ids // each * cluster.gpus_per_host + ids % each
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
        groups=Groups(members, point_to_point=pairs),
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
    read = one.batch * one.k * (one.m * _bits(one.lhs) + one.n * _bits(one.rhs)) // 8
    written = one.batch * one.m * one.n * _bits(one.out) // 8
    work = Work("matmul", float(one.flops), read, written, (one,))
    return Kernel(f"line {row.line}", work)


def _bits(element_type: str) -> int:
    """Bits of an element: the first number in the name of its type."""
    found = re.search(r"\d+", element_type)
    return int(found[0]) if found else 8


def _read(
    text: str,
    origin: str,
    columns: Iterable[str],
    read_row: Callable[[Mapping[str, str], int], Row],
) -> Table[Row]:
    lines = csv.DictReader(text.splitlines(), restval="")
    missing = [name for name in columns if name not in (lines.fieldnames or ())]
    if missing:
        raise MeasurementError(
            f"{origin} has no column {', '.join(missing)}; its first line must be "
            "names of columns, see docs/calibration.md"
        )
    rows: list[Row] = []
    skipped: list[str] = []
    for fields in lines:
        try:
            rows.append(read_row(fields, lines.line_num))
        except ValueError as error:
            skipped.append(f"line {lines.line_num}: {error}")
    if not rows:
        first = f" ({skipped[0]})" if skipped else ""
        raise MeasurementError(f"{origin} has no row that can be used{first}")
    return Table(tuple(rows), tuple(skipped))


def _collective_row(fields: Mapping[str, str], line: int) -> CollectiveRow:
    op = fields["op"].strip()
    if op not in KINDS:
        raise ValueError(f"op is {op!r}, which is no collective")
    devices = _whole(fields, "devices")
    pairs = op in POINT_TO_POINT
    groups = None if pairs else _whole(fields, "groups")
    size = None if pairs else _whole(fields, "group_size")
    if groups and size and groups * size > devices:
        raise ValueError(f"{groups} groups of {size} are more than {devices} devices")
    return CollectiveRow(
        gpu=fields["gpu"].strip(),
        op=op,
        devices=groups * size if groups and size else devices,
        groups=groups,
        group_size=size,
        tensor_bytes=_whole(fields, "tensor_bytes"),
        microseconds=_time(fields),
        line=line,
    )


def _matmul_row(fields: Mapping[str, str], line: int) -> MatmulRow:
    types = _TYPES.match(fields["types"].strip())
    if not types:
        raise ValueError(f"types is {fields['types']!r}; write bf16xbf16->bf16")
    batch, m, n, k = (_whole(fields, name) for name in ("batch", "m", "n", "k"))
    matmul = Matmul(batch, m, n, k, types[1], types[2], types[3])
    return MatmulRow(fields["gpu"].strip(), matmul, _time(fields), line)


def _whole(fields: Mapping[str, str], name: str) -> int:
    text = (fields.get(name) or "").strip()
    if not text.isdecimal() or int(text) == 0:
        raise ValueError(f"{name} is {text!r}")
    return int(text)


def _time(fields: Mapping[str, str]) -> float:
    text = (fields["microseconds"] or "").strip()
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError(f"microseconds is {text!r}")
    return value
