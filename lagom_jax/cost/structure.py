"""Time of a collective at NCCL's default setting inside one domain: two forms.

Collectives that hand data from GPU to GPU wait for every rank once and are then limited
by the link and by the copy of the GPU's own piece. Sends and receives are limited by
the busiest channel or by the link. Latency and transfer are two parts that add. The
coefficients are fitted; derivation: docs/explanation/model.md.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TypeAlias

from lagom_jax.cost.peers import Parts
from lagom_jax.cost.span import Span, wire_bytes
from lagom_jax.hlo.kinds import POINT_TO_POINT

_PAIR = 2
"""GPUs that have the way between them to themselves."""

Parted: TypeAlias = tuple[float, float]
"""Microseconds of latency, and of the transfer."""


def rate_among(rate: float, senders: int, fall: float) -> float:
    """Rate of each GPU where many go through the processors: over PCIe.

    Args:
        rate: What each of two GPUs has.
        senders: GPUs that send at once.
        fall: Power of half the senders by which it falls: one where all of them share
            what crosses the processors, zero where each has a way of its own.

    Example:
        >>> [rate_among(24.0, n, 1.0) for n in (1, 2, 4, 8)]
        [24.0, 24.0, 12.0, 6.0]
    """
    return rate / max(1.0, senders / 2) ** fall


@dataclasses.dataclass(frozen=True, slots=True)
class Streamed:
    """All-gather, reduce-scatter and all-reduce.

    Example:
        >>> form = Streamed(6.0, 1.0, 0.0, 2.0, 3.0, 8.0, 0.5, 0.4, 1.0, 2.0)
        >>> form.latency(8, "ll"), form.latency(8, "simple")
        (13.0, 30.0)
    """

    latency_microseconds: float
    latency_per_rank: float
    """Added for every rank but one."""
    latency_per_doubling: float
    """Added for every doubling of the ranks."""
    ll128_per_doubling: float
    """So too in the LL128 protocol."""
    simple_per_doubling: float
    """So too in the Simple protocol."""
    simple_microseconds: float
    """Added in the Simple protocol, whatever the ranks."""
    link_share: float
    """Of the link's peak, that transfers reach."""
    ll_share: float
    """The same in the LL protocol."""
    copy_share: float
    """Rate at which a GPU handles its own piece, in link peaks."""
    ramp: float
    """Times the root of the microseconds that the bytes take at the link's peak."""
    fall: float = 0.0
    """Power of half the ranks by which the link's share falls, see `rate_among`."""
    first_bytes: float = 0.0
    """Bytes that each of more than two GPUs sends faster in Simple, before the way that
    they share is as slow as it gets."""
    first_saved: float = 0.0
    """Part of their time on the link that those bytes do not take."""

    def latency(self, ranks: int, protocol: str) -> float:
        """Microseconds that do not depend on the bytes."""
        doubling = self.latency_per_doubling
        more = 0.0
        if protocol == "simple":
            doubling += self.simple_per_doubling
            more = self.simple_microseconds
        elif protocol == "ll128":
            doubling += self.ll128_per_doubling
        return (
            self.latency_microseconds
            + more
            + self.latency_per_rank * (ranks - 1)
            + doubling * math.log2(ranks)
        )

    def parted(
        self, kind: str, nbytes: float, ranks: int, peak: float, protocol: str
    ) -> Parted:
        """Microseconds alone, `peak` being the link's bytes per second."""
        sent = wire_bytes(kind, nbytes, ranks) / peak * 1e6
        own = nbytes / ranks / peak * 1e6
        share = rate_among(self.share_in(protocol), ranks, self.fall)
        on_link = (sent - self._saved(sent, ranks, peak, protocol)) / share
        transfer = on_link + own / self.copy_share + self.ramp * math.sqrt(sent)
        return self.latency(ranks, protocol), transfer

    def _saved(self, sent: float, ranks: int, peak: float, protocol: str) -> float:
        """Microseconds at the link's peak that the first bytes do not take."""
        if protocol != "simple" or ranks <= _PAIR:
            return 0.0
        return self.first_saved * min(sent, self.first_bytes / peak * 1e6)

    def share_in(self, protocol: str) -> float:
        """Share of the link's peak that transfers reach in a protocol."""
        if protocol == "ll":
            return min(self.ll_share, self.link_share)
        return self.link_share


@dataclasses.dataclass(frozen=True, slots=True)
class Exchanged:
    """All-to-all and permute: sends and receives.

    Example:
        >>> form = Exchanged(6.0, 0.5, 8.0, 5.0, 22.0, 1.4, 0.75, 2.0, 2.0)
        >>> form.latency(3, "ll"), form.latency(3, "simple")
        (7.0, 15.0)
    """

    latency_microseconds: float
    latency_per_rank: float
    """Added for every rank but one; zero where each GPU has one peer."""
    simple_latency: float
    """Added where the Simple protocol is used."""
    ll_channel_gb_per_s: float
    """Rate of one channel in the LL protocol."""
    simple_channel_gb_per_s: float
    """Rate of one channel in the Simple protocol."""
    one_way_gain: float
    """Times that rate where no channel both sends and receives."""
    link_share: float
    """Of the link's peak, that all channels together reach."""
    copy_share: float
    """Rate at which an all-to-all copies a GPU's own piece, in link peaks."""
    ramp: float
    """Times the root of the microseconds that the bytes take at the link's peak."""
    fall: float = 0.0
    """Power of half the senders by which the link's share falls, see `rate_among`."""
    apart_share: float = 0.0
    """Of the permutes whose pairs nobody knows, those that have that gain."""

    def latency(self, ranks: int, protocol: str) -> float:
        """Microseconds that do not depend on the bytes."""
        latency = self.latency_microseconds + self.latency_per_rank * (ranks - 1)
        return latency + (self.simple_latency if protocol == "simple" else 0.0)

    def parted(
        self, kind: str, nbytes: float, span: Span, peak: float, parts: Parts
    ) -> Parted:
        """Microseconds alone, `peak` being the link's bytes per second."""
        apart = self.apart_share if span.apart is None else float(span.apart)
        latency, in_step = self._parted(kind, nbytes, span, peak, parts, 1.0)
        if not apart:
            return latency, in_step
        gain = self.one_way_gain
        _, faster = self._parted(kind, nbytes, span, peak, parts, gain)
        both = (latency + in_step) ** (1 - apart) * (latency + faster) ** apart
        return latency, both - latency

    def _parted(
        self,
        kind: str,
        nbytes: float,
        span: Span,
        peak: float,
        parts: Parts,
        gain: float,
    ) -> Parted:
        ranks = span.size
        rate = self.ll_channel_gb_per_s
        if parts.protocol == "simple":
            rate = self.simple_channel_gb_per_s * gain
        sent = wire_bytes(kind, nbytes, ranks) / peak * 1e6
        own = 0.0 if kind in POINT_TO_POINT else nbytes / ranks / peak * 1e6
        ramp = self.ramp * math.sqrt(sent)
        on_channel = parts.serial_bytes / (rate * 1e3)
        share = rate_among(self.link_share, span.pairs or ranks, self.fall)
        on_link = sent / share + own / self.copy_share
        return self.latency(ranks, parts.protocol), ramp + max(on_channel, on_link)

    def share_in(self, protocol: str) -> float:
        """Share of the link's peak that all channels reach, in any protocol."""
        return self.link_share


Form = Streamed | Exchanged
EXCHANGED_KINDS = ("all-to-all", "collective-permute")
"""The measured kinds that NCCL runs as sends and receives."""
