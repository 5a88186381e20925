"""Seconds of a collective that has the links to itself.

Inside one domain the time at NCCL's default setting is calibrated (`surface.py`). Over
several domains the network is added, with estimated constants. Another setting than
the default scales that time by NCCL's structure (`nccl_time.py`). docs/model.md derives
all three.
"""

from __future__ import annotations

import dataclasses
import math

from lagom_jax.cluster import Cluster
from lagom_jax.cost.constants import Constants, load_constants
from lagom_jax.cost.nccl_default import nccl_default
from lagom_jax.cost.nccl_facts import nccl_facts
from lagom_jax.cost.nccl_time import structure_seconds
from lagom_jax.cost.prices import Price
from lagom_jax.cost.setting import Setting
from lagom_jax.cost.span import Span, wire_bytes
from lagom_jax.cost.structure import on_link
from lagom_jax.cost.surface import Surface
from lagom_jax.hlo.collective import POINT_TO_POINT

_ALL_TO_ALL = ("all-to-all", "ragged-all-to-all")


@dataclasses.dataclass(frozen=True, slots=True)
class _Parts:
    """A time, and what it is made of."""

    seconds: float
    latency: float
    bound: str
    """The link that limits the transfer."""
    peak: float
    """Bytes per second that this link could carry of what each GPU sends."""


def collective_seconds(
    kind: str,
    nbytes: float,
    span: Span,
    cluster: Cluster,
    setting: Setting | None = None,
    *,
    operands: int = 1,
) -> float:
    """Seconds of one execution of a collective through NCCL, alone.

    Args:
        kind: The kind of collective.
        nbytes: Bytes on the larger side of the op.
        span: How its groups lie on the cluster.
        cluster: What it runs on.
        setting: How it is run; by default as NCCL chooses by itself.
        operands: Arrays that the compiler combined into this launch.

    Raises:
        SettingError: NCCL does not have the setting's algorithm for this collective.

    Example:
        >>> h100 = Cluster.parse("h100:1x8")
        >>> one = collective_seconds("all-gather", 1 << 30, Span(8, 1, 8), h100)
        >>> 2.6e-3 < one < 2.9e-3
        True
        >>> few = Setting("ring", "simple", 2, 544, 524288)
        >>> slow = collective_seconds("all-gather", 1 << 30, Span(8, 1, 8), h100, few)
        >>> slow > 4 * one
        True
    """
    constants = load_constants(cluster.gpu)
    terms = CollectiveTerms.of(kind, nbytes, span, cluster, constants, operands)
    return terms.price(setting).seconds


@dataclasses.dataclass(frozen=True, slots=True)
class CollectiveTerms:
    """All of a collective's price that its setting does not change."""

    kind: str
    nbytes: float
    operands: int
    span: Span
    cluster: Cluster
    usual: Setting | None
    """What NCCL chooses by itself; None where it has no part in it."""
    _parts: _Parts
    _usual_structure: float

    @classmethod
    def of(
        cls,
        kind: str,
        nbytes: float,
        span: Span,
        cluster: Cluster,
        constants: Constants,
        operands: int = 1,
        *,
        one_shot: bool = False,
    ) -> CollectiveTerms:
        """The terms of a collective.

        Args:
            kind: The kind of collective.
            nbytes: Bytes on the larger side of the op.
            span: How its groups lie on the cluster.
            cluster: The links it moves over.
            constants: What those links reach of their peaks.
            operands: Arrays that the compiler combined into this launch.
            one_shot: Whether XLA runs it as a kernel of its own.
        """
        usual, structure = None, 0.0
        if span.size == 1:
            parts = _Parts(constants.launch_seconds, 0.0, "latency", 0.0)
        elif one_shot:
            # Every GPU reads the whole operand of every other, after one barrier.
            read = nbytes * (span.size - 1) / cluster.inside.bytes_per_s
            parts = _Parts(constants.one_shot_seconds + read, 0.0, "latency", 0.0)
        else:
            usual = nccl_default(kind, nbytes, span, cluster)
            parts = _default(kind, nbytes, span, cluster, constants)
            structure = structure_seconds(kind, nbytes, span, cluster, usual)
        return cls(kind, nbytes, operands, span, cluster, usual, parts, structure)

    @property
    def sent_bytes(self) -> float:
        """What each GPU sends."""
        return wire_bytes(self.kind, self.nbytes, self.span.size)

    def price(self, setting: Setting | None = None) -> Price:
        """The price under a setting, or under NCCL's own.

        Raises:
            SettingError: NCCL does not have the setting's algorithm for this.
        """
        parts = self._parts
        if self.usual is None:
            return Price(parts.seconds, parts.bound)
        seconds = parts.seconds
        if setting is not None and setting != self.usual:
            asked = structure_seconds(
                self.kind, self.nbytes, self.span, self.cluster, setting
            )
            seconds *= asked / self._usual_structure
        seconds += _further_turns(self.operands, self.cluster) * parts.latency
        bound = parts.bound
        if parts.seconds - parts.latency <= parts.latency:
            bound = "latency"
        return Price(seconds, bound, min(1.0, self.sent_bytes / (parts.peak * seconds)))


def _further_turns(operands: int, cluster: Cluster) -> int:
    # One group, one launch: operands lie side by side on the channels, and only those
    # that find no channel of their own wait for another turn of the steps.
    return math.ceil(max(1, operands) / nccl_facts(cluster).channels) - 1


def _default(
    kind: str, nbytes: float, span: Span, cluster: Cluster, constants: Constants
) -> _Parts:
    surface = constants.surfaces.of(kind)
    facts = nccl_facts(cluster)
    peak = cluster.inside.bytes_per_s
    protocol = nccl_default(kind, nbytes, span, cluster).protocol
    latency = surface.form.latency(span.size, protocol) * 1e-6
    if span.domains == 1:
        seconds = surface.seconds(nbytes, span, peak, facts)
        return _Parts(seconds, latency, cluster.inside.kind, peak)
    if kind == "all-reduce":
        # NCCL takes a tree between domains where latency counts; only the members of
        # one domain wait for each other in turn.
        latency = surface.form.latency(span.local, protocol) * 1e-6
    latency += constants.network_latency_seconds * math.ceil(math.log2(span.domains))
    bound, transfer, peak = _across(kind, nbytes, span, cluster, constants, surface)
    return _Parts(latency + transfer, latency, bound, peak)


def _across(
    kind: str,
    nbytes: float,
    span: Span,
    cluster: Cluster,
    constants: Constants,
    surface: Surface,
) -> tuple[str, float, float]:
    """The link that limits, its seconds, and its peak for what each GPU sends."""
    moved = wire_bytes(kind, nbytes, span.size)
    inside = cluster.inside.bytes_per_s
    own = nbytes / span.size / inside * 1e6

    def inside_seconds(moved: float) -> float:
        return on_link(surface.form, moved / inside * 1e6, own) * 1e-6

    network = cluster.between.bytes_per_s
    network_rate = network * constants.network_efficiency
    if kind in POINT_TO_POINT:
        return "network", moved / network_rate, network
    if kind in _ALL_TO_ALL:
        # Each GPU's own card carries what it sends to other domains.
        away = (span.size - span.local) / (span.size - 1)
        choices = [
            ("network", moved * away / network_rate, network / away),
            (cluster.inside.kind, inside_seconds(moved * (1 - away)), inside),
        ]
        return max(choices, key=lambda choice: choice[1])
    cards = network_rate * span.local
    if span.local > 1 and inside_seconds(moved) > moved / cards:
        return cluster.inside.kind, inside_seconds(moved), inside
    return "network", moved / cards, network * span.local
