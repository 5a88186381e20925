"""The clusters that a GPU would make up, where there is only one of it."""

from __future__ import annotations

from gpu_stages.stage import CannotRunError
from lagom_jax.cluster import Cluster


def cluster_of(gpu: str, gpus: int = 1, *, hosts: int = 1) -> Cluster:
    """So many GPUs of a record on each of some hosts.

    Args:
        gpu: The name of the GPU's record.
        gpus: How many of them a host has.
        hosts: How many hosts there are.

    Raises:
        CannotRunError: No system has such GPUs.

    Example:
        >>> cluster_of("h200", 8).name, cluster_of("gb200").name
        ('h200:1x8', 'gb200-nvl72:1x1')
    """
    # Hosts that one rents have such GPUs too; the GPU's own system comes first.
    for system in sorted(Cluster.names(), key=lambda name: not name.startswith(gpu)):
        if Cluster.parse(system).gpu.name == gpu:
            return Cluster.parse(f"{system}:{hosts}x{gpus}")
    raise CannotRunError(
        f"no system has GPUs with the record '{gpu}'; name one of "
        + ", ".join(sorted({Cluster.parse(name).gpu.name for name in Cluster.names()}))
        + ", as in --gpu=h100"
    )
