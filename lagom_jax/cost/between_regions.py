"""Seconds of a collective whose groups reach into several regions.

All groups of a collective are under way together and share their region's link. No
setting of NCCL changes that.
"""

from __future__ import annotations

import numpy as np

from lagom_jax.cluster import Cluster
from lagom_jax.cost.prices import Price
from lagom_jax.cost.span import wire_bytes
from lagom_jax.hlo.groups import Groups
from lagom_jax.hlo.kinds import POINT_TO_POINT

_ALL_TO_ALL = ("all-to-all", "ragged-all-to-all")


def wan_bytes(kind: str, nbytes: float, groups: Groups, cluster: Cluster) -> float:
    """Bytes that leave a region, the one that sends the most.

    Around a ring, one of a group's members in a region sends to the next region. Of an
    all-to-all every member sends to all that are elsewhere; of a permute, each source
    whose target is elsewhere.

    Args:
        kind: The kind of collective.
        nbytes: Bytes on the larger side of the op.
        groups: Of the collective.
        cluster: What it runs on.

    Example:
        >>> cluster = Cluster.parse("2*h100:1x8@10gbps,80ms")
        >>> pairs = Groups(np.arange(16).reshape(2, 8).T)
        >>> wan_bytes("all-reduce", 1000, pairs, cluster)
        8000.0
    """
    if cluster.wan is None or not groups.members.size:
        return 0.0
    regions = groups.members // cluster.region_size
    if kind in POINT_TO_POINT:
        away = regions[:, 0] != regions[:, 1]
        counts = np.bincount(regions[away, 0], minlength=cluster.regions)
        return float(counts.max() * nbytes)
    sent = np.zeros(cluster.regions)
    size = regions.shape[1]
    for group in regions:
        members = np.bincount(group, minlength=cluster.regions)
        if (members > 0).sum() < 2:
            continue
        if kind in _ALL_TO_ALL:
            sent += members * (size - members) / size * nbytes
        else:
            sent += (members > 0) * wire_bytes(kind, nbytes, size)
    return float(sent.max())


def wan_price(
    kind: str, nbytes: float, groups: Groups, cluster: Cluster
) -> Price | None:
    """The price of a collective between regions; None if it stays inside of each.

    Example:
        >>> cluster = Cluster.parse("2*h100:1x8@8gbps,80ms")
        >>> wan_price("all-reduce", 1e9, Groups(np.array([[0, 8]])), cluster).bound
        'wan'
    """
    sent = wan_bytes(kind, nbytes, groups, cluster)
    if not sent or cluster.wan is None:
        return None
    # Once around, and once more where the result of a sum goes around, too.
    rounds = (cluster.regions - 1) * (2 if kind == "all-reduce" else 1)
    rounds = 1 if kind in (*POINT_TO_POINT, *_ALL_TO_ALL) else rounds
    transfer = sent / cluster.wan.bytes_per_s
    seconds = transfer + rounds * cluster.wan.latency_s
    return Price(seconds, "wan", transfer / seconds)
