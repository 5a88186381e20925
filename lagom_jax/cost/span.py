"""Placement of a collective's groups on a cluster, and the bytes of each GPU."""

from __future__ import annotations

import dataclasses
from weakref import WeakKeyDictionary

import numpy as np

from lagom_jax.cluster import Cluster
from lagom_jax.hlo.groups import Groups
from lagom_jax.hlo.kinds import POINT_TO_POINT


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """Placement of a collective's groups on a cluster; the widest group counts.

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
    in_step: bool | None = None
    """True if a device receives in the round of NCCL's schedule in which it sends; None
    where nobody knows the pairs."""

    @property
    def apart(self) -> bool | None:
        """True if no channel both sends and receives; None where nobody knows.

        So few pairs that no device need do both are apart in any case.

        Example:
            >>> Span(8, 1, 1, 4).apart, Span(8, 1, 1, 8).apart
            (True, None)
        """
        if not self.pairs:
            return False
        if self.in_step is None:
            return True if 2 * self.pairs <= self.size else None
        return not self.in_step


def span_of(groups: Groups, cluster: Cluster) -> Span:
    """Placement of groups on a cluster.

    Example:
        >>> groups = Groups(np.arange(64).reshape(8, 8).T)
        >>> span_of(groups, Cluster.parse("h100:8x8"))
        Span(size=8, domains=8, local=1, pairs=0, in_step=None)
    """
    known = _spans.setdefault(groups, {})
    key = cluster.devices, cluster.scale_up_size
    if key not in known:
        known[key] = _worked_out(groups, cluster)
    return known[key]


# All models of an ensemble ask for the same ones.
_spans: WeakKeyDictionary[Groups, dict[tuple[int, int], Span]] = WeakKeyDictionary()


def _worked_out(groups: Groups, cluster: Cluster) -> Span:
    if not groups.members.size:
        # Pairs that the compiler did not write down: the next device, at worst a
        # domain away.
        crossed = 1 if cluster.devices <= cluster.scale_up_size else 2
        return Span(cluster.devices, crossed, 1, cluster.devices, in_step=True)
    domains = np.sort(groups.members // cluster.scale_up_size, axis=1)
    crossings = (domains[:, 1:] != domains[:, :-1]).sum(axis=1)
    widest = domains[int(crossings.argmax())]
    _, counts = np.unique(widest, return_counts=True)
    local = int(counts.min())
    if groups.point_to_point:
        pairs = len(groups.members)
        in_step = None if groups.assumed else _in_step(groups, cluster.devices)
        return Span(cluster.devices, int(counts.size), local, pairs, in_step)
    return Span(int(widest.size), int(counts.size), local)


def _in_step(groups: Groups, devices: int) -> bool:
    """True if a device receives over the distance over which it sends.

    In each round of NCCL's schedule all ranks send over one distance and receive over
    the same, so that a shift along a ring is one round and an exchange between
    neighbours is two.

    Example:
        >>> ring = Groups(np.array([[0, 1], [1, 2], [2, 0]]), point_to_point=True)
        >>> swap = Groups(np.array([[0, 1], [1, 0]]), point_to_point=True)
        >>> _in_step(ring, 3), _in_step(swap, 3)
        (True, False)
    """
    distance = {
        int(source): (int(target) - int(source)) % devices
        for source, target in groups.members
    }
    return any(
        distance.get(int(target)) == distance[int(source)]
        for source, target in groups.members
    )


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
