"""Time of a collective at NCCL's default setting inside one domain: two forms.

Collectives that hand data from GPU to GPU wait for every rank once and are then limited
by the link and by the copy of the GPU's own piece. Sends and receives are limited by
the busiest channel or by the link. The coefficients are fitted; derivation:
docs/explanation/model.md.
"""

from __future__ import annotations

import dataclasses
import math

from lagom_jax.cost.nccl_default import simple_from
from lagom_jax.cost.nccl_facts import NcclFacts
from lagom_jax.cost.peers import default_parts
from lagom_jax.cost.span import Span, wire_bytes
from lagom_jax.hlo.collective import POINT_TO_POINT


@dataclasses.dataclass(frozen=True, slots=True)
class Streamed:
    """All-gather, reduce-scatter and all-reduce.

    Example:
        >>> form = Streamed(6.0, 1.0, 0.0, 3.0, 0.5, 1.0, 2.0)
        >>> form.latency(8), form.latency(8, "simple")
        (13.0, 22.0)
    """

    latency_microseconds: float
    latency_per_rank: float
    """Added for every rank but one."""
    latency_per_doubling: float
    """Added for every doubling of the ranks."""
    simple_per_doubling: float
    """So too, where NCCL has gone over to the Simple protocol."""
    link_share: float
    """Of the link's peak, that transfers reach."""
    copy_share: float
    """Rate at which a GPU handles its own piece, in link peaks."""
    ramp: float
    """Times the root of the microseconds that the bytes take at the link's peak."""

    def latency(self, ranks: int, protocol: str = "ll") -> float:
        """Microseconds that do not depend on the bytes."""
        doubling = self.latency_per_doubling
        if protocol == "simple":
            doubling += self.simple_per_doubling
        return (
            self.latency_microseconds
            + self.latency_per_rank * (ranks - 1)
            + doubling * math.log2(ranks)
        )

    def microseconds(
        self, kind: str, nbytes: float, span: Span, peak: float, facts: NcclFacts
    ) -> float:
        """Microseconds alone, `peak` being the link's bytes per second."""
        ranks = span.size
        simple = nbytes >= simple_from(kind, ranks, facts)
        latency = self.latency(ranks, "simple" if simple else "ll")
        sent = wire_bytes(kind, nbytes, ranks) / peak * 1e6
        own = nbytes / ranks / peak * 1e6
        return latency + on_link(self, sent, own)


@dataclasses.dataclass(frozen=True, slots=True)
class Exchanged:
    """All-to-all and permute: sends and receives.

    Example:
        >>> form = Exchanged(6.0, 0.5, 8.0, 5.0, 22.0, 1.4, 0.75, 2.0, 2.0)
        >>> form.latency(3), form.latency(3, "simple")
        (7.0, 15.0)
    """

    latency_microseconds: float
    latency_per_rank: float
    """Added for every rank but one; zero where each GPU has one peer."""
    simple_latency: float
    """Added where the Simple protocol is used."""
    ll_channel_gb_per_s: float
    """What one channel moves in the LL protocol."""
    simple_channel_gb_per_s: float
    """What one channel moves in the Simple protocol."""
    one_way_gain: float
    """Times that rate where no channel both sends and receives."""
    link_share: float
    """Of the link's peak, that all channels together reach."""
    copy_share: float
    """Rate at which an all-to-all copies a GPU's own piece, in link peaks."""
    ramp: float
    """Times the root of the microseconds that the bytes take at the link's peak."""
    apart_share: float = 0.0
    """Of the permutes whose pairs nobody knows, those that have that gain."""

    def latency(self, ranks: int, protocol: str = "ll") -> float:
        """Microseconds that do not depend on the bytes."""
        latency = self.latency_microseconds + self.latency_per_rank * (ranks - 1)
        return latency + (self.simple_latency if protocol == "simple" else 0.0)

    def microseconds(
        self, kind: str, nbytes: float, span: Span, peak: float, facts: NcclFacts
    ) -> float:
        """Microseconds alone, `peak` being the link's bytes per second."""
        apart = self.apart_share if span.apart is None else float(span.apart)
        in_step = self._microseconds(kind, nbytes, span, peak, facts, 1.0)
        if not apart:
            return in_step
        gain = self.one_way_gain
        faster = self._microseconds(kind, nbytes, span, peak, facts, gain)
        return in_step ** (1 - apart) * faster**apart

    def _microseconds(
        self,
        kind: str,
        nbytes: float,
        span: Span,
        peak: float,
        facts: NcclFacts,
        gain: float,
    ) -> float:
        ranks = span.size
        parts = default_parts(kind, nbytes, ranks, facts)
        latency = self.latency(ranks, parts.protocol)
        rate = self.ll_channel_gb_per_s
        if parts.protocol == "simple":
            rate = self.simple_channel_gb_per_s * gain
        sent = wire_bytes(kind, nbytes, ranks) / peak * 1e6
        own = 0.0 if kind in POINT_TO_POINT else nbytes / ranks / peak * 1e6
        on_channel = parts.serial_bytes / (rate * 1e3) + self.ramp * math.sqrt(sent)
        return latency + max(on_channel, on_link(self, sent, own))


Form = Streamed | Exchanged
EXCHANGED_KINDS = ("all-to-all", "collective-permute")
"""The measured kinds that NCCL runs as sends and receives."""


def on_link(form: Streamed | Exchanged, sent: float, own: float) -> float:
    """Microseconds of what is sent over a link and of a GPU's own piece.

    Args:
        form: What the link reaches.
        sent: Microseconds that it would take at the link's peak.
        own: So too for the own piece.

    Example:
        >>> on_link(Streamed(6.0, 1.0, 0.0, 3.0, 0.5, 1.0, 2.0), 100.0, 10.0)
        230.0
    """
    ramp = form.ramp * math.sqrt(sent)
    return ramp + sent / form.link_share + own / form.copy_share
