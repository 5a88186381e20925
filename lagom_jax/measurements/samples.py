"""Pairs of a measured and a predicted time, from which a calibration is made."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from lagom_jax.cluster import Cluster
from lagom_jax.cost.prices import Prices
from lagom_jax.cost.replay import price_of
from lagom_jax.cost.span import span_of
from lagom_jax.hlo.collective import Collective
from lagom_jax.measurements.rows import (
    CollectiveRow,
    MatmulRow,
    collective_of,
    kernel_of,
)
from lagom_jax.program.program import Kernel, Task

# Kinds of kernel whose time follows their arithmetic more than their bytes.
_BY_ARITHMETIC = frozenset({"matmul", "attention", "convolution"})


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Key:
    """The kind of task that shares one correction."""

    family: str
    """`collective` or `kernel`."""
    kind: str
    scope: str = ""
    """For collectives `inside` one scale-up domain, or `between` several."""
    ranks: int = 0
    """Devices in a group of the collective; 0 where there are no groups."""


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """One measurement."""

    key: Key
    size: float
    """Bytes, or operations of a kernel that is known for its arithmetic."""
    predicted: float
    measured: float


def key_of(task: Task, cluster: Cluster) -> Key | None:
    """The key of the correction for a task; None for those never corrected.

    Small all-reduces that XLA runs as a kernel of its own are not NCCL's, and a group
    of one moves nothing.
    """
    if isinstance(task, Kernel):
        return Key("kernel", task.work.kind)
    if task.one_shot_kernel or (
        task.groups.size == 1 and not task.groups.point_to_point
    ):
        return None
    ranks = 0 if task.groups.point_to_point else task.groups.size
    scope = "between" if span_of(task.groups, cluster).domains > 1 else "inside"
    return Key("collective", task.kind, scope, ranks)


def size_of(task: Task) -> float:
    """The size that a correction depends on."""
    if isinstance(task, Collective):
        return float(task.bytes)
    if task.work.kind in _BY_ARITHMETIC:
        return task.work.flops
    return float(task.work.hbm_bytes + task.work.host_bytes)


def unit_of(key: Key) -> str:
    """The unit of a key's sizes."""
    arithmetic = key.family == "kernel" and key.kind in _BY_ARITHMETIC
    return "operations" if arithmetic else "bytes"


def samples_of_collectives(
    rows: Iterable[CollectiveRow], cluster: Cluster, prices: Prices
) -> tuple[list[Sample], int]:
    """Samples of measured collectives, and how many rows the cluster is too small for.

    Args:
        rows: Measured on the GPUs of the cluster.
        cluster: Where they were measured.
        prices: The model's.
    """
    found: list[Sample] = []
    left_out = 0
    for row in rows:
        task = collective_of(row, cluster)
        if task is None:
            left_out += 1
        else:
            found += _sample(task, row.microseconds * 1e-6, cluster, prices)
    return found, left_out


def samples_of_matmuls(
    rows: Iterable[MatmulRow], cluster: Cluster, prices: Prices
) -> list[Sample]:
    """Samples of measured matrix products."""
    return [
        sample
        for row in rows
        for sample in _sample(kernel_of(row), row.microseconds * 1e-6, cluster, prices)
    ]


def samples_of_seconds(
    measured: Mapping[Task, float], cluster: Cluster, prices: Prices
) -> list[Sample]:
    """Samples of tasks whose seconds alone were measured."""
    return [
        sample
        for task, seconds in measured.items()
        for sample in _sample(task, seconds, cluster, prices)
    ]


def _sample(
    task: Task, seconds: float, cluster: Cluster, prices: Prices
) -> Iterable[Sample]:
    key = key_of(task, cluster)
    predicted = price_of(task, prices).seconds
    if key is not None and predicted > 0 and seconds > 0:
        yield Sample(key, size_of(task), predicted, seconds)
