"""The cluster that jax's devices make up."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, cast

import jax

from lagom_jax.cluster import Cluster
from lagom_jax.errors import ClusterError
from lagom_jax.planner import Budget
from lagom_jax.runtime.options import AUTO
from lagom_jax.runtime.say import LOG
from lagom_jax.scheduled import cluster_named

_GPUS = ("gpu", "cuda")


def on_gpus(devices: Sequence[Any]) -> bool:
    """True if devices are GPUs that XLA compiles for with its CUDA compiler.

    Example:
        >>> import jax
        >>> on_gpus(jax.devices("cpu"))
        False
    """
    return bool(devices) and all(
        device.platform in _GPUS and "NVIDIA" in device.device_kind
        for device in devices
    )


def any_gpus() -> bool:
    """True if a step of this process could run on such GPUs at all.

    Example:
        >>> any_gpus()
        False
    """
    found: list[Any] = []
    for platform in (None, "gpu"):
        # jax raises it where there are none.
        with contextlib.suppress(RuntimeError):
            found += cast("Any", jax).devices(platform)
    return any(on_gpus([device]) for device in found)


def cluster_asked(asked: str | Cluster, devices: Sequence[Any]) -> Cluster | None:
    """The cluster to plan for; None where there is nothing to plan.

    Args:
        asked: The one that the user names, or `auto`.
        devices: All that the step uses.

    Raises:
        ClusterError: The devices make up no cluster.
    """
    if asked != AUTO:
        return cluster_named(asked)
    if not on_gpus(devices):
        LOG.info(
            "the step runs on %s, where there is nothing to tune; name a cluster "
            "to plan for one (cluster='h100:1x8', --lagom_cluster)",
            devices[0].device_kind,
        )
        return None
    if len(devices) == 1:
        LOG.info("the step runs on one device: there is nothing to communicate")
        return None
    return cluster_of(devices)


def cluster_of(devices: Sequence[Any]) -> Cluster:
    """The cluster that devices belong to.

    Args:
        devices: NVIDIA GPUs, all that the step uses.

    Raises:
        ClusterError: They are of several kinds, of one that has no record, or there
            are more on one host than on another.
    """
    kinds = sorted({device.device_kind for device in devices})
    if len(kinds) > 1:
        raise ClusterError(
            f"the step uses GPUs of several kinds ({', '.join(kinds)}); lagom_jax "
            "plans for one kind"
        )
    hosts = collections.Counter(map(_host, devices))
    if len(set(hosts.values())) > 1:
        counts = ", ".join(str(count) for _, count in sorted(hosts.items()))
        raise ClusterError(
            f"the step's GPUs are spread unevenly over hosts ({counts}): name what to "
            "plan for, as in cluster='h100:2x8'"
        )
    return Cluster.of_gpus(kinds[0], len(hosts), max(hosts.values()))


def budget_here(
    budget: Budget, devices: Sequence[Any], environ: Mapping[str, str] = os.environ
) -> Budget:
    """A budget that counts the memory that jax has on this process's GPUs.

    Args:
        budget: What was asked for.
        devices: All that the step runs on.
        environ: Where jax is told how much to take.

    Example:
        >>> budget_here(Budget(), [], {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".95"})
        Budget(compiles=8, seconds=600.0, memory_fraction=0.95, ...)
    """
    if budget.memory_bytes is not None:
        return budget
    usual = budget.memory_fraction == Budget().memory_fraction
    with contextlib.suppress(KeyError, ValueError):
        if usual:
            fraction = float(environ["XLA_PYTHON_CLIENT_MEM_FRACTION"])
            budget = dataclasses.replace(budget, memory_fraction=min(fraction, 1.0))
    limits = [_limit(device) for device in devices]
    known = [limit for limit in limits if limit]
    if usual and known:
        budget = dataclasses.replace(budget, memory_bytes=min(known))
    return budget


def _limit(device: Any) -> int | None:
    """Bytes that jax may take on a device; None where that is not known here."""
    with contextlib.suppress(Exception):
        # Only a process's own devices say so.
        return int(device.memory_stats()["bytes_limit"])
    return None


def _host(device: Any) -> int:
    # What shares a host, or NVLink, has one number; a process may have a GPU alone.
    found = getattr(device, "slice_index", None)
    return device.process_index if found is None else found
