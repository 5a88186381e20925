"""Time of a collective at NCCL's own channels, in one domain or over several."""

from __future__ import annotations

import dataclasses
import math

from lagom_jax.cluster import Cluster
from lagom_jax.cost.constants import Constants
from lagom_jax.cost.nccl_facts import NcclFacts
from lagom_jax.cost.span import Span, wire_bytes
from lagom_jax.cost.structure import rate_among
from lagom_jax.hlo.kinds import POINT_TO_POINT
from lagom_jax.plan.setting import Setting

_ALL_TO_ALL = ("all-to-all", "ragged-all-to-all")


@dataclasses.dataclass(frozen=True, slots=True)
class Alone:
    """Seconds of a collective that has the links to itself, in two parts."""

    latency: float
    transfer: float
    bound: str
    """The link that limits the transfer."""
    peak: float
    """Bytes per second that this link could carry of what each GPU sends."""
    reached: float
    """The same as the largest messages reach it: all that collectives side by side
    have together."""


def across(
    kind: str,
    nbytes: float,
    span: Span,
    cluster: Cluster,
    constants: Constants,
    facts: NcclFacts,
    setting: Setting,
) -> Alone:
    """The parts of a collective's time as NCCL runs it.

    Args:
        kind: The kind of collective.
        nbytes: Bytes on the larger side of the op.
        span: How its groups lie on the cluster.
        cluster: The links it moves over.
        constants: What those links reach of their peaks.
        facts: NCCL's constants.
        setting: NCCL's own, in one of its protocols.
    """
    surface = constants.surfaces.of(kind)
    peak, protocol = cluster.inside.bytes_per_s, setting.protocol
    fall = surface.form.fall
    if span.domains == 1:
        parts = surface.parted(nbytes, span, peak, facts, protocol)
        each = rate_among(peak, span.pairs or span.size, fall)
        reached = each * surface.reached(span, facts, protocol)
        return Alone(*parts, cluster.inside.kind, each, reached)
    network = constants.network
    card = cluster.between.bytes_per_s
    inside, inside_bytes, far, far_peak = _loads(kind, nbytes, span, card, setting)
    latency, inside_seconds = surface.parted(
        inside_bytes, inside, peak, facts, protocol
    )
    if inside.size == 1:
        inside_seconds = 0.0
    far_seconds = far / (far_peak * network.efficiency)
    if protocol == "ll" and setting.algorithm != "p2p":
        # NCCL's own limit of LL between hosts, far below what half of the links carry.
        bus = far_peak / 1e9
        most = facts.link_gb_per_s(setting.algorithm, protocol, bus, span.domains)
        far_seconds = max(far_seconds, far / (most * 1e9))
    latency += network.crossing_seconds + 1e-6 * _hops(kind, span, facts, setting)
    slowly = network.tree_ramp if kind == "all-reduce" else network.ramp
    ramp = slowly * 1e-6 * math.sqrt(far_seconds * 1e6)
    sent = wire_bytes(kind, nbytes, span.size)
    if inside_seconds > far_seconds:
        each = rate_among(peak, inside.size, fall)
        # Of an all-to-all only a part stays inside.
        part = wire_bytes(kind, inside_bytes, inside.size) / sent
        reached = each * surface.reached(inside, facts, protocol) / part
        link = cluster.inside.kind
        return Alone(latency, inside_seconds + ramp, link, each, reached)
    carries = far_peak * sent / far if far else far_peak
    reached = min(carries, sent / far_seconds) if far else carries
    return Alone(latency, far_seconds + ramp, "network", carries, reached)


def _loads(
    kind: str, nbytes: float, span: Span, card: float, setting: Setting
) -> tuple[Span, float, float, float]:
    """Part that moves inside, as a collective of one domain, and its network."""
    n, local = span.size, max(1, span.local)
    if kind in POINT_TO_POINT:
        # Its pairs are as many; at worst all of the message crosses.
        return Span(n, 1, 1, span.pairs, span.in_step), 0.0, nbytes, card
    inside = Span(local, 1, local)
    sent = wire_bytes(kind, nbytes, n)
    if kind in _ALL_TO_ALL:
        # Each GPU's own card carries what it sends to other domains.
        within = nbytes * local / n
        return inside, within, nbytes * (n - local) / n, card
    cards = card * local
    if kind == "all-reduce" and span.domains == 2:
        # As a tree: two hosts exchange each half of the data once. Both networks whose
        # all-reduces were measured beat the rate that a ring could have.
        return inside, nbytes, nbytes, cards
    if setting.algorithm in ("tree", "nvls_tree"):
        # A host hands each half on to two others, or gets it from one.
        return inside, nbytes, 2 * nbytes, cards
    if local == 1:
        return inside, 0.0, sent, cards
    alike = nbytes * ((n - 1) / n) / ((local - 1) / local)
    return inside, alike, sent, cards


def _hops(kind: str, span: Span, facts: NcclFacts, setting: Setting) -> float:
    """Microseconds of the steps between domains and of those inside that they add."""
    protocol = setting.protocol
    if setting.algorithm == "p2p":
        return facts.network_microseconds["ring"][protocol]
    far = facts.network_microseconds[setting.algorithm][protocol]
    if setting.algorithm != "ring":
        twice = 1 if setting.algorithm == "pat" else 2
        return twice * math.log2(span.domains) * far
    twice = 2 if kind == "all-reduce" else 1
    hop = facts.inside_microseconds["ring"][protocol]
    more = span.size - span.domains - (span.local - 1)
    return twice * ((span.domains - 1) * far + max(0, more) * hop)
