"""Time of a collective under a setting: NCCL's structure.

Steps that wait for each other, channels that share the link, chunks that fill and drain
a pipeline, and protocols that pay for low latency with bandwidth. Only the latency that
one setting has more than another, and the ratio of their transfers, are used; the level
comes from measurements (`surface.py`). No transfer takes less than its channels need.
"""

from __future__ import annotations

import dataclasses
import math

from lagom_jax.cost.nccl_default import offered_by
from lagom_jax.cost.nccl_facts import NcclFacts
from lagom_jax.cost.peers import parts_on
from lagom_jax.cost.soft import soft_maximum
from lagom_jax.cost.span import Span, wire_bytes
from lagom_jax.plan.setting import PAYLOAD, Setting, SettingError

_FULL_THREADS = 512


@dataclasses.dataclass(frozen=True, slots=True)
class Pipeline:
    """Terms of a collective's time: the data, its rate and what it waits for."""

    wire_bytes: float
    """Bytes that each GPU sends."""
    hops: int
    """Steps that wait for each other, inside domains."""
    far_hops: float
    """And those over the network."""
    fill: float
    """Chunks that pass before all ranks are busy."""
    link_gb_per_s: float
    """Rate of the protocol over the slowest link on the way."""


@dataclasses.dataclass(frozen=True, slots=True)
class Structure:
    """Parts of a collective's time that add up, uncalibrated. All in seconds."""

    latency: float
    """Time for which its steps wait, whatever the bytes."""
    transfer: float
    """Time of its bytes over channels and links, with what chunks add."""
    on_channels: float
    """Time of the busiest channel for its bytes at the rate of a channel: the
    transfer of no setting takes less."""
    sent_bytes: float
    """By each GPU over the links, as the algorithm has it."""

    @property
    def seconds(self) -> float:
        """Both parts."""
        return self.latency + self.transfer


def structure_of(
    kind: str, nbytes: float, span: Span, facts: NcclFacts, setting: Setting
) -> Structure:
    """The parts of a collective's time under a setting, uncalibrated.

    Args:
        kind: The kind of collective.
        nbytes: Bytes on the larger side of the op.
        span: How its groups lie on the cluster.
        facts: NCCL's constants there.
        setting: How it is run.

    Raises:
        SettingError: NCCL does not have that algorithm for this collective.

    Example:
        Two channels are slower than eight.

        >>> from lagom_jax.cluster import Cluster
        >>> from lagom_jax.cost.nccl_facts import nccl_facts
        >>> span, facts = Span(8, 1, 8), nccl_facts(Cluster.parse("h100:1x8"))
        >>> def time(text):
        ...     setting = Setting.parse(text)
        ...     return structure_of("all-gather", 1e9, span, facts, setting).seconds
        >>> time("ring/simple/2/544/524288") > 3 * time("ring/simple/8/544/524288")
        True
    """
    choices = offered_by(kind, span, facts)
    if (setting.algorithm, setting.protocol) not in choices:
        raise SettingError(
            f"NCCL does not run {kind} as {setting.algorithm} with {setting.protocol} "
            f"here; it has {', '.join('/'.join(choice) for choice in choices)}"
        )
    # What a protocol adds to the payload takes its part of the link as of a channel.
    payload = PAYLOAD[setting.protocol]
    each = facts.channel_gb_per_s * payload * _thread_share(setting.threads, facts)
    overhead = facts.slice_overhead_microseconds[setting.protocol]
    if setting.algorithm == "p2p":
        return _exchange(kind, nbytes, span, facts, setting, each, overhead)
    pipeline = _pipeline(kind, nbytes, span, facts, setting)
    channels = min(setting.channels, _filled(kind, nbytes, setting, facts))
    on_channel = pipeline.wire_bytes / channels
    transfer = soft_maximum(
        on_channel / (each * 1e3),
        pipeline.wire_bytes / (pipeline.link_gb_per_s * 1e3),
    )
    steps = max(1.0, pipeline.hops + pipeline.far_hops)
    chunk = min(float(setting.chunk_bytes), max(1.0, on_channel / steps))
    base = facts.base_microseconds[setting.algorithm][setting.protocol]
    hop = facts.inside_microseconds.get(setting.algorithm, {})
    far = facts.network_microseconds[setting.algorithm][setting.protocol]
    return Structure(
        1e-6
        * (
            base
            + pipeline.hops * hop.get(setting.protocol, 0.0)
            + pipeline.far_hops * far
        ),
        1e-6
        * (
            transfer
            + on_channel / chunk * overhead
            + pipeline.fill * chunk / (each * 1e3)
        ),
        1e-6 * on_channel / (each * 1e3),
        pipeline.wire_bytes,
    )


def _pipeline(
    kind: str, nbytes: float, span: Span, facts: NcclFacts, setting: Setting
) -> Pipeline:
    n, domains = span.size, span.domains
    wire = wire_bytes(kind, nbytes, n)
    link = facts.inside_gb_per_s
    if domains > 1:
        link = min(link, facts.network_gb_per_s * span.local)
    algorithm, protocol = setting.algorithm, setting.protocol
    reached = facts.link_gb_per_s(algorithm, protocol, link, domains)
    depth = math.log2(domains)
    twice = 2 if kind == "all-reduce" else 1
    if algorithm == "ring":
        far = (domains - 1) * twice
        return Pipeline(wire, (n - 1) * twice - far, far, 1.0, reached)
    if algorithm == "tree":
        hops = round(2 * (n / domains - 1))
        return Pipeline(2 * nbytes, hops, 2 * depth, hops + 2 * depth, reached)
    if algorithm == "pat":
        return Pipeline(wire / 0.75, 0, depth, depth, link)
    # The switch reduces and multicasts, so an all-reduce sends its data once.
    rate = facts.inside_gb_per_s * facts.nvls_efficiency
    far = 2 * depth if algorithm == "nvls_tree" else 0.0
    if far:
        rate = min(rate, link)
    return Pipeline(wire / twice, 1, far, 2.0 + far, rate)


def _exchange(
    kind: str,
    nbytes: float,
    span: Span,
    facts: NcclFacts,
    setting: Setting,
    each: float,
    overhead: float,
) -> Structure:
    parts = parts_on(kind, nbytes, span.size, setting.channels, setting.protocol, facts)
    link = facts.inside_gb_per_s if span.domains == 1 else facts.network_gb_per_s
    payload = PAYLOAD[setting.protocol]
    sent = wire_bytes(kind, nbytes, span.size)
    on_channel = parts.serial_bytes / (each * 1e3)
    chunk = min(float(setting.chunk_bytes), max(1.0, parts.part_bytes))
    base = facts.base_microseconds["ring"][setting.protocol]
    hops = facts.network_microseconds if span.domains > 1 else facts.inside_microseconds
    return Structure(
        1e-6 * (base + hops["ring"][setting.protocol] * parts.rounds),
        1e-6
        * (
            soft_maximum(on_channel, sent / (link * payload * 1e3))
            + parts.serial_bytes / chunk * overhead
            + chunk / (each * 1e3)
        ),
        1e-6 * on_channel,
        sent,
    )


def _thread_share(threads: int, facts: NcclFacts) -> float:
    half = facts.half_rate_threads
    full = _FULL_THREADS / (_FULL_THREADS + half)
    return threads / (threads + half) / full


def _filled(kind: str, nbytes: float, setting: Setting, facts: NcclFacts) -> int:
    """Channels that a message has work for."""
    traffic = nbytes * (2 if kind == "all-reduce" else 1)
    traffic *= 4 if setting.protocol == "ll" else 1
    return max(1, math.ceil(traffic / facts.bytes_per_channel))
