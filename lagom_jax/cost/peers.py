"""NCCL's parts of a send, and its rounds of an all-to-all.

NCCL gives each pair of GPUs a power of two of channels, as many as fit when all peers
are served at once, and doubles it while a channel's part is longer than 32 chunks.
What does not fit into the channels of the communicator waits for the next round. A
message of at most 16 KiB per channel goes in the LL protocol: per channel of the
communicator, or since 2.29.2 per channel that serves the pair, of which none has less
than 64 KiB to carry. Where a communicator crosses the network all pairs have few
channels, those inside a host too; over PCIe a pair has two at most.
"""

from __future__ import annotations

import dataclasses
import math

from lagom_jax.cost.nccl_facts import NcclFacts
from lagom_jax.hlo.kinds import POINT_TO_POINT


@dataclasses.dataclass(frozen=True, slots=True)
class Parts:
    """Placement of the messages of one GPU on the channels.

    Example:
        >>> Parts(1 << 20, 4, 2, 32, "simple").serial_bytes
        2097152.0
    """

    part_bytes: float
    """Bytes that a channel sends to one peer."""
    per_peer: int
    """Channels that serve one peer."""
    rounds: int
    """Number of peers that a channel serves, one after another."""
    channels: int
    """Channels in use."""
    protocol: str

    @property
    def serial_bytes(self) -> float:
        """Bytes that the busiest channel sends."""
        return float(self.part_bytes * self.rounds)


def p2p_channels(facts: NcclFacts, domains: int = 1) -> int:
    """Channels that sends and receives may use: a power of two.

    Example:
        >>> from lagom_jax.cluster import Cluster
        >>> from lagom_jax.cost.nccl_facts import nccl_facts
        >>> p2p_channels(nccl_facts(Cluster.parse("h100")))
        32
    """
    return 1 << math.ceil(math.log2(facts.channels_over(domains)))


def default_parts(
    kind: str, nbytes: float, ranks: int, facts: NcclFacts, domains: int = 1
) -> Parts:
    """NCCL's own cut of a send of `nbytes`, or an all-to-all of them.

    Args:
        kind: The kind of collective.
        nbytes: Bytes on the larger side of the op.
        ranks: Of the communicator.
        facts: NCCL's constants.
        domains: Scale-up domains that the communicator reaches into.

    Example:
        One of 72 GPUs sends 16 MiB and then a little more: two channels instead of one.

        >>> from lagom_jax.cluster import Cluster
        >>> from lagom_jax.cost.nccl_facts import nccl_facts
        >>> facts = nccl_facts(Cluster.parse("gb200-nvl72"))
        >>> default_parts("collective-permute", 16 << 20, 72, facts).per_peer
        1
        >>> default_parts("collective-permute", 17 << 20, 72, facts).per_peer
        2
    """
    most = p2p_channels(facts, domains)
    peers = 1 if kind in POINT_TO_POINT else ranks
    message = nbytes / peers
    reach = min(most, facts.near_channels_per_peer)
    if domains > 1:
        reach = min(reach, facts.net_channels_per_peer)
    longest = facts.p2p_chunk_bytes * facts.p2p_most_chunks if domains == 1 else 1 << 17
    first = min(reach, _fitting(most, ranks), _parts(message, facts))
    per_peer = _doubled(message, first, reach, longest)
    serving = per_peer if facts.p2p_ll_by_channels_in_use else reach
    small = message <= facts.p2p_ll_bytes_per_channel * serving
    protocol = "ll" if small and domains == 1 else "simple"
    return _laid_out(message, peers, per_peer, most, protocol, facts)


def parts_on(
    kind: str, nbytes: float, ranks: int, channels: int, protocol: str, facts: NcclFacts
) -> Parts:
    """The same on so many channels, in a given protocol.

    Example:
        >>> from lagom_jax.cluster import Cluster
        >>> from lagom_jax.cost.nccl_facts import nccl_facts
        >>> facts = nccl_facts(Cluster.parse("h100"))
        >>> parts_on("all-to-all", 8 << 20, 8, 4, "simple", facts).rounds
        2
    """
    peers = 1 if kind in POINT_TO_POINT else ranks
    message = nbytes / peers
    per_peer = min(channels, _parts(message, facts))
    if peers > 1:
        longest = facts.p2p_chunk_bytes * facts.p2p_most_chunks
        first = min(_fitting(channels, ranks), per_peer)
        per_peer = _doubled(message, first, channels, longest)
    return _laid_out(message, peers, per_peer, channels, protocol, facts)


def _fitting(channels: int, ranks: int) -> int:
    return 1 << max(0, math.floor(math.log2(max(1, channels / ranks))))


def _parts(message: float, facts: NcclFacts) -> int:
    return max(1, math.ceil(message / facts.p2p_least_part_bytes))


def _doubled(message: float, per_peer: int, most: int, longest: float) -> int:
    while message / per_peer > longest and per_peer <= most / 2:
        per_peer *= 2
    return per_peer


def _laid_out(
    message: float,
    peers: int,
    per_peer: int,
    most: int,
    protocol: str,
    facts: NcclFacts,
) -> Parts:
    wanted = peers * per_peer
    least = min(message, facts.p2p_least_part_bytes)
    return Parts(
        max(least, message / per_peer),
        per_peer,
        math.ceil(wanted / most),
        min(most, wanted),
        protocol,
    )
