"""How a collective's groups lie on a cluster, and what each GPU must send."""

from __future__ import annotations

import dataclasses

import numpy as np

from lagom_jax.cluster import Cluster
from lagom_jax.hlo.collective import POINT_TO_POINT
from lagom_jax.hlo.groups import Groups


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """How a collective's groups lie on a cluster; the widest group counts.

    Example:
        >>> Span(16, 2, 8).domains
        2
    """

    size: int
    """Devices in a group; for point-to-point, in the whole job: XLA's communicator
    for a permute holds them all."""
    domains: int
    """Scale-up domains that a group, or a pair, reaches into."""
    local: int
    """The fewest members of a group in one of its domains."""
    pairs: int = 0
    """Sources with a target, in a point-to-point exchange."""

    @property
    def one_way(self) -> bool:
        """Whether there are so few pairs that no device need both send and receive.

        Example:
            >>> Span(8, 1, 1, 4).one_way, Span(8, 1, 1, 8).one_way
            (True, False)
        """
        return 0 < 2 * self.pairs <= self.size


def span_of(groups: Groups, cluster: Cluster) -> Span:
    """How groups lie on a cluster.

    Example:
        >>> groups = Groups(np.arange(64).reshape(8, 8).T)
        >>> span_of(groups, Cluster.parse("h100:8x8"))
        Span(size=8, domains=8, local=1, pairs=0)
    """
    if not groups.members.size:
        # Pairs that the compiler did not write down: the next device, at worst a
        # domain away.
        crossed = 1 if cluster.devices <= cluster.scale_up_size else 2
        return Span(cluster.devices, crossed, 1, cluster.devices)
    domains = np.sort(groups.members // cluster.scale_up_size, axis=1)
    crossings = (domains[:, 1:] != domains[:, :-1]).sum(axis=1)
    widest = domains[int(crossings.argmax())]
    _, counts = np.unique(widest, return_counts=True)
    local = int(counts.min())
    if groups.point_to_point:
        pairs = len(groups.members)
        return Span(cluster.devices, int(counts.size), local, pairs)
    return Span(int(widest.size), int(counts.size), local)


def wire_bytes(kind: str, nbytes: float, size: int) -> float:
    """Bytes that each GPU sends over its links.

    Args:
        kind: The kind of collective.
        nbytes: Bytes on the larger side of the op.
        size: GPUs in a group.

    Example:
        >>> wire_bytes("all-reduce", 1024, 8)
        1792.0
    """
    if kind in POINT_TO_POINT or kind == "collective-broadcast":
        return float(nbytes)
    share = nbytes * (size - 1) / size
    return 2 * share if kind == "all-reduce" else share
