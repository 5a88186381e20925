"""NCCL's own choice, from its documented cost model.

NCCL ranks algorithms and protocols by `latency + bytes / bandwidth` and takes as many
channels as the communicator has, fewer for messages that do not fill them. A scale-up
domain counts as a node here. The model is good for the choice only, not for the time:
it knows neither channels nor chunks (docs/explanation/model.md).
"""

from __future__ import annotations

import math

from lagom_jax.cluster import Cluster
from lagom_jax.cost.nccl_facts import NcclFacts, nccl_facts
from lagom_jax.cost.peers import default_parts, parts_on
from lagom_jax.cost.span import Span
from lagom_jax.plan.setting import REDUCING, Setting, largest_chunk

_P2P_THREADS = 512


def nccl_default(
    kind: str, nbytes: float, span: Span, cluster: Cluster, nccl: str = ""
) -> Setting:
    """The setting that NCCL would choose by itself.

    Args:
        kind: The kind of collective.
        nbytes: Bytes on the larger side of the op.
        span: How its groups lie on the cluster.
        cluster: What it runs on.
        nccl: NCCL's version; by default that of its record.

    Example:
        >>> h100 = Cluster.parse("h100:1x8")
        >>> str(nccl_default("all-gather", 1 << 30, Span(8, 1, 8), h100))
        'ring/simple/24/544/2097152'
        >>> str(nccl_default("all-to-all", 1 << 30, Span(8, 1, 8), h100))
        'p2p/simple/32/512/524288'
        >>> nccl_default("all-gather", 1 << 10, Span(8, 1, 8), h100).protocol
        'll'
    """
    return default_of(kind, nbytes, span, nccl_facts(cluster, nccl))


def default_of(
    kind: str,
    nbytes: float,
    span: Span,
    facts: NcclFacts,
    protocol: str = "",
    *,
    in_turn: int = 1,
) -> Setting:
    """The setting that NCCL would choose by itself, or in a protocol if it had to.

    Args:
        kind: The kind of collective.
        nbytes: Bytes on the larger side of the op.
        span: How its groups lie on the cluster.
        facts: NCCL's constants.
        protocol: Of what it may choose from; by default all.
        in_turn: Arrays of its group that a channel works through one by one.
    """
    if kind not in (*REDUCING, "collective-broadcast"):
        parts = default_parts(kind, nbytes, span.size, facts, span.domains)
        if protocol not in ("", parts.protocol):
            channels = parts.channels
            parts = parts_on(kind, nbytes, span.size, channels, protocol, facts)
        limit = largest_chunk("p2p", parts.protocol)
        return Setting(
            "p2p",
            parts.protocol,
            parts.channels,
            _P2P_THREADS,
            min(facts.p2p_chunk_bytes, limit),
        )
    algorithm, chosen = _chosen(kind, nbytes, span, facts, protocol, in_turn)
    return _resources(nbytes, span, facts, algorithm, chosen)


def _chosen(
    kind: str,
    nbytes: float,
    span: Span,
    facts: NcclFacts,
    protocol: str,
    in_turn: int,
) -> tuple[str, str]:
    times = {
        choice: time
        for choice in offered_by(kind, span, facts)
        if protocol in ("", choice[1])
        if (time := _modelled(kind, nbytes, span, facts, *choice, in_turn)) < math.inf
    }
    return min(times, key=lambda choice: times[choice])


def offered(kind: str, span: Span, cluster: Cluster) -> list[tuple[str, str]]:
    """The algorithms and protocols that NCCL has for a collective.

    Example:
        >>> offered("all-to-all", Span(8, 1, 8), Cluster.parse("h100"))
        [('p2p', 'll'), ('p2p', 'simple')]
    """
    return offered_by(kind, span, nccl_facts(cluster))


def offered_by(kind: str, span: Span, facts: NcclFacts) -> list[tuple[str, str]]:
    """The algorithms and protocols that NCCL has for a collective, by its constants."""
    if kind not in (*REDUCING, "collective-broadcast"):
        return [("p2p", "ll"), ("p2p", "simple")]
    protocols = ("ll", "ll128", "simple") if facts.ll128 else ("ll", "simple")
    found = [("ring", protocol) for protocol in protocols]
    if kind == "collective-broadcast":
        return found
    if kind == "all-reduce":
        found += [("tree", protocol) for protocol in protocols]
        if facts.nvls_efficiency and span.domains > 1:
            found.append(("nvls_tree", "simple"))
    elif span.domains == span.size and span.domains > 1:
        found.append(("pat", "simple"))
    if facts.nvls_efficiency and span.domains == 1:
        found.append(("nvls", "simple"))
    return found


def _modelled(
    kind: str,
    nbytes: float,
    span: Span,
    facts: NcclFacts,
    algorithm: str,
    protocol: str,
    in_turn: int,
) -> float:
    """Microseconds in NCCL's model of itself."""
    bandwidth = _bandwidth(kind, span, facts, algorithm, protocol)
    # A ring waits anew for each array; in a tree those of a batch follow each other.
    waits = in_turn if algorithm == "ring" else -(-in_turn // facts.arrays_in_a_batch)
    return waits * _latency(kind, span, facts, algorithm, protocol) + (
        nbytes / (1e3 * bandwidth) if bandwidth > 0 else math.inf
    )


def _bandwidth(
    kind: str, span: Span, facts: NcclFacts, algorithm: str, protocol: str
) -> float:
    """GB/s of the op's bytes."""
    n, domains = span.size, span.domains
    inside = facts.inside_gb_per_s
    bus = inside
    if domains > 1:
        bus = min(inside, facts.network_gb_per_s * span.local)
    # The model counts the channels of the graph, half of those in use.
    channels = facts.channels_over(domains) / 2
    steps = 2 * (n - 1) if kind == "all-reduce" else n - 1
    if algorithm in ("ring", "tree"):
        rate = facts.link_gb_per_s(algorithm, protocol, bus, domains)
        caps = {
            ("ring", "ll128"): facts.ring_ll128_channel_gb_per_s,
            ("tree", "ll128"): facts.tree_ll128_channel_gb_per_s,
            ("tree", "simple"): facts.tree_channel_gb_per_s,
        }.get((algorithm, protocol))
        if caps is not None:
            rate = min(rate, channels * facts.by_domains(caps, domains))
        return rate * n / steps if algorithm == "ring" else 0.5 * rate
    if algorithm == "pat":
        return 0.75 * bus
    rate = inside * facts.nvls_efficiency
    if kind == "all-reduce":
        rate *= 2
        if domains > 1:
            # The tree crosses the network once each way in at most two domains.
            network = facts.network_gb_per_s * span.local
            rate = min(rate, network * (2 if domains == 2 else 1))
    else:
        rate *= (n - 1) / n
    return rate * n / steps


def _latency(
    kind: str, span: Span, facts: NcclFacts, algorithm: str, protocol: str
) -> float:
    n, domains = span.size, span.domains
    base = facts.base_microseconds[algorithm][protocol]
    hop = facts.inside_microseconds.get(algorithm, {}).get(protocol, 0.0)
    far = facts.network_microseconds[algorithm][protocol]
    if algorithm == "ring":
        steps = 2 * (n - 1) if kind == "all-reduce" else n - 1
        crossing = 0
        if domains > 1:
            crossing = (domains - 1) * (2 if kind == "all-reduce" else 1)
        return base + (steps - crossing) * hop + crossing * far
    depth = math.log2(domains)
    if algorithm == "tree":
        return base + 2 * ((n / domains - 1) * hop + depth * far)
    if algorithm == "pat":
        return base + depth * far / 3.5 + 2.8 * n
    return base + hop + (2 * depth * far if algorithm == "nvls_tree" else 0.0)


def _resources(
    nbytes: float, span: Span, facts: NcclFacts, algorithm: str, protocol: str
) -> Setting:
    """Channels and threads that the message fills, and the chunk."""
    if algorithm == "nvls":
        chunk = _nvls_chunk(nbytes, facts.nvls_channels * span.size)
        return Setting(algorithm, protocol, facts.nvls_channels, 640, chunk)
    channels = facts.channels_over(span.domains)
    threads = 640 if protocol == "ll128" or algorithm in ("tree", "pat") else 512
    threshold = facts.bytes_per_thread[protocol]
    if (algorithm, protocol) == ("ring", "ll"):
        threshold *= span.size
    while channels > 1 and nbytes < channels * threads * threshold:
        channels -= 1
    while threads % 128 == 0 and threads > 128:
        if nbytes >= channels * threads * threshold:
            break
        threads //= 2
    if (algorithm, protocol) == ("ring", "simple"):
        threads += 32  # a warp that only synchronises
    threads = min(max(threads, 160 if protocol == "ll128" else 96), 640)
    if protocol == "ll":
        threads = min(threads, 512)
    return Setting(
        algorithm, protocol, channels, threads, largest_chunk(algorithm, protocol)
    )


def _nvls_chunk(nbytes: float, heads: int) -> int:
    chunk = 131072
    for smaller, factor in ((65536, 64), (32768, 8), (16384, 2)):
        if nbytes < factor * heads * chunk:
            chunk = min(chunk, smaller)
    return chunk
