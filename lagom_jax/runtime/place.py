"""The cluster that jax's devices make up."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Sequence
from typing import Any, cast

import jax

from lagom_jax.cluster import Cluster
from lagom_jax.errors import ClusterError

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


def _host(device: Any) -> int:
    # What shares a host, or NVLink, has one number; a process may have a GPU alone.
    found = getattr(device, "slice_index", None)
    return device.process_index if found is None else found
