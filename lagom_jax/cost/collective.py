"""Seconds of a collective that has the links to itself: latency and bandwidth.

Every GPU moves a certain share of the collective's bytes over its links, whatever the
order (a ring and a tree move the same). Inside one domain the links are NVLink or PCIe.
A collective over several domains is limited by the slower of those and of the network:
a ring enters and leaves every domain once and may use the network card of each of its
members there. Derivation and fit: docs/model.md.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from lagom_jax.cluster import Cluster
from lagom_jax.cost.constants import CollectiveConstants, Constants
from lagom_jax.cost.prices import Price
from lagom_jax.hlo.collective import POINT_TO_POINT, Collective
from lagom_jax.hlo.groups import Groups


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """How a collective's groups lie on a cluster; the widest group counts."""

    size: int
    """Devices in a group; 2 for a point-to-point exchange."""
    domains: int
    """Scale-up domains that a group reaches into."""
    local: int
    """The fewest members of a group in one of its domains."""


def span_of(groups: Groups, cluster: Cluster) -> Span:
    """How groups lie on a cluster."""
    if not groups.members.size:
        # Pairs that the compiler did not write down: the next device, at worst a
        # domain away.
        return Span(2, 1 if cluster.devices <= cluster.scale_up_size else 2, 1)
    domains = np.sort(groups.members // cluster.scale_up_size, axis=1)
    crossings = (domains[:, 1:] != domains[:, :-1]).sum(axis=1)
    widest = domains[int(crossings.argmax())]
    _, counts = np.unique(widest, return_counts=True)
    return Span(int(widest.size), int(counts.size), int(counts.min()))


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


def collective_price(
    collective: Collective, cluster: Cluster, constants: Constants
) -> Price:
    """The price of one execution of a collective.

    Args:
        collective: What moves between whom.
        cluster: The links it moves over.
        constants: What those links reach of their peaks.
    """
    span = span_of(collective.groups, cluster)
    if span.size == 1:
        return Price(constants.launch_seconds, "latency")
    fitted = _constants_for(collective.kind, constants)
    moved = wire_bytes(collective.kind, collective.bytes, span.size)
    if collective.one_shot_kernel:
        seconds = constants.one_shot_seconds + moved / cluster.inside.bytes_per_s
        return Price(seconds, "latency")
    latency = (
        fitted.latency_seconds
        + fitted.latency_seconds_per_rank * span.size
        + constants.network_latency_seconds * math.ceil(math.log2(span.domains))
    )
    name, transfer, peak = _transfer(collective.kind, moved, span, cluster, constants)
    seconds = latency + transfer
    bound = name if transfer > latency else "latency"
    return Price(seconds, bound, moved / (peak * seconds))


def _constants_for(kind: str, constants: Constants) -> CollectiveConstants:
    known = constants.collectives
    stand_ins = {
        "ragged-all-to-all": "all-to-all",
        "collective-broadcast": "all-gather",
        "send": "collective-permute",
        "recv": "collective-permute",
    }
    return known.get(kind) or known[stand_ins[kind]]


def _transfer(
    kind: str, moved: float, span: Span, cluster: Cluster, constants: Constants
) -> tuple[str, float, float]:
    """The link that limits, its seconds, and its peak rate for this collective."""
    inside = cluster.inside.bytes_per_s
    inside_rate = inside * _constants_for(kind, constants).efficiency
    if span.domains == 1:
        return cluster.inside.kind, moved / inside_rate, inside
    network = cluster.between.bytes_per_s
    network_rate = network * constants.network_efficiency
    if kind in POINT_TO_POINT:
        return "network", moved / network_rate, network
    if kind in ("all-to-all", "ragged-all-to-all"):
        # Each GPU's own card carries what it sends to other domains.
        away = (span.size - span.local) / (span.size - 1)
        choices = [
            ("network", moved * away / network_rate, network / away),
            (cluster.inside.kind, moved * (1 - away) / inside_rate, inside),
        ]
        return max(choices, key=lambda choice: choice[1])
    cards = network_rate * span.local
    if span.local > 1 and inside_rate < cards:
        return cluster.inside.kind, moved / inside_rate, inside
    return "network", moved / cards, network * span.local
