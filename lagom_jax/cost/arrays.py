"""Placement of the arrays of a group on the channels of one NCCL kernel.

NCCL fills one channel after the other, each with its part of the bytes, and a channel
works through its arrays one by one, each with all steps of the ring. So an array costs
a small ring's latency wherever it lies, and many small ones on one channel cost as
many. Which latency that is, the protocol says that NCCL chose for it: up to 2.21 one
for the sum of all, later one for each bin of arrays of about one size, for which
latencies count as often as a channel has arrays of the group. From 2.26.2 on arrays in
LL count four times their bytes, so that they are spread over more channels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from lagom_jax.cost.nccl_default import default_of
from lagom_jax.cost.nccl_facts import NcclFacts
from lagom_jax.cost.span import Span
from lagom_jax.hlo.collective import Collective
from lagom_jax.plan.setting import REDUCING, Setting

_LEAST_COUNTED_BYTES = 512
"""Floor of what an array counts that is too low to matter."""
_BIN = 4
"""An array joins a bin while it is smaller than so many times the bin's smallest."""


def bins_of(arrays: tuple[float, ...], facts: NcclFacts) -> Iterator[tuple[float, ...]]:
    """The arrays of a group for each of which NCCL makes one choice.

    Args:
        arrays: Bytes of each array, from small to large.
        facts: NCCL's constants.

    Example:
        >>> from lagom_jax.cluster import Cluster
        >>> from lagom_jax.cost.nccl_facts import nccl_facts
        >>> arrays, a100 = (1.0, 2.0, 3.0, 9.0, 35.0), Cluster.parse("a100:1x8")
        >>> list(bins_of(arrays, nccl_facts(a100, "2.29.7")))
        [(1.0, 2.0, 3.0), (9.0, 35.0)]
        >>> list(bins_of(arrays, nccl_facts(a100, "2.21.5"))) == [arrays]
        True
    """
    if facts.arrays_chosen_together:
        yield arrays
        return
    first = 0
    for place, nbytes in enumerate(arrays):
        if nbytes >= _BIN * arrays[first]:
            yield arrays[first:place]
            first = place
    yield arrays[first:]


def protocols_of(
    kind: str, arrays: tuple[float, ...], span: Span, facts: NcclFacts
) -> list[str]:
    """The protocol that NCCL chooses for each bin of a group's arrays.

    Args:
        kind: The kind of collective.
        arrays: Bytes of each array, from small to large.
        span: How its groups lie on the cluster.
        facts: NCCL's constants.

    Example:
        >>> from lagom_jax.cluster import Cluster
        >>> from lagom_jax.cost.nccl_facts import nccl_facts
        >>> arrays, a100 = (3e4,) * 72 + (3e6,) * 24, Cluster.parse("a100:1x4")
        >>> protocols_of("all-gather", arrays, Span(4, 1, 4), nccl_facts(a100))
        ['ll', 'simple']
    """
    # NCCL has its channels work through a group's arrays one by one.
    each = 1
    if not facts.arrays_chosen_together:
        each = -(-len(arrays) // facts.channels_over(span.domains))
    return [
        default_of(kind, sum(one), span, facts, in_turn=each).protocol
        for one in bins_of(arrays, facts)
    ]


def arrays_of(collective: Collective) -> tuple[float, ...]:
    """Bytes of each array that a collective moves, on the larger side."""
    given = [float(nbytes) for _, nbytes in collective.operands]
    more = collective.bytes / sum(given) if sum(given) else 1.0
    return tuple(nbytes * more for nbytes in given)


def usual_of(
    kind: str, nbytes: float, arrays: Sequence[float], span: Span, facts: NcclFacts
) -> Setting:
    """The setting that NCCL would choose by itself for a group of arrays.

    Args:
        kind: The kind of collective.
        nbytes: Bytes on the larger side, of all arrays.
        arrays: Bytes of each, in any order; one or none is as if of a single array.
        span: How its groups lie on the cluster.
        facts: NCCL's constants.

    Returns:
        That of the largest arrays: smaller ones may have another protocol. Its
        algorithm is the one for a single array of all bytes in that protocol.

    Example:
        >>> from lagom_jax.cluster import Cluster
        >>> from lagom_jax.cost.nccl_facts import nccl_facts
        >>> span, facts = Span(8, 1, 8), nccl_facts(Cluster.parse("a100:1x8"))
        >>> usual_of("all-gather", 3e7, (), span, facts).protocol
        'simple'
        >>> usual_of("all-gather", 3e7, (1e5,) * 300, span, facts).protocol
        'll'
    """
    protocol = ""
    if len(arrays) > 1 and kind in REDUCING:
        protocol = protocols_of(kind, tuple(sorted(arrays)), span, facts)[-1]
    return default_of(kind, nbytes, span, facts, protocol)


def usual_setting(collective: Collective, span: Span, facts: NcclFacts) -> Setting:
    """The setting that NCCL would choose by itself for a collective, as `usual_of`."""
    arrays = arrays_of(collective)
    return usual_of(collective.kind, float(collective.bytes), arrays, span, facts)


def counted(kind: str, nbytes: float, protocol: str, facts: NcclFacts) -> float:
    """Bytes that NCCL counts for an array of a group when it fills channels.

    Args:
        kind: The kind of collective.
        nbytes: Of the array, on the larger side.
        protocol: Its protocol.
        facts: NCCL's constants.

    Example:
        >>> from lagom_jax.cluster import Cluster
        >>> from lagom_jax.cost.nccl_facts import nccl_facts
        >>> a100 = Cluster.parse("a100:1x8")
        >>> versions = "2.21.5", "2.23.4", "2.26.2", "2.29.2"
        >>> of = [nccl_facts(a100, version) for version in versions]
        >>> [counted("all-gather", 6000, "ll", facts) for facts in of]
        [6000, 16384, 24000, 32768]
    """
    traffic = nbytes * (2 if kind == "all-reduce" else 1)
    if protocol == "ll":
        traffic *= facts.ll_array_counts
    if facts.array_bytes > _LEAST_COUNTED_BYTES:
        return max(facts.array_bytes, traffic)
    return max(1, traffic)


@dataclasses.dataclass(frozen=True, slots=True)
class Waits:
    """Seconds that arrays wait for others on their channel: all but the longest."""

    longest: float
    """On the channel with most of them."""
    mean: float
    """Over all channels: one that is done gives its SM back."""


NO_WAITS = Waits(0.0, 0.0)
"""Of a single array."""


def waits_of(arrays: Sequence[tuple[float, float]], channels: int) -> Waits:
    """Waits of the arrays of a group for each other.

    Args:
        arrays: What each array counts (`counted`) and the seconds of its steps, from
            small arrays to large ones.
        channels: Of the communicator.

    Example:
        Ninety small arrays beside six large ones all lie on one channel.

        >>> waits_of([(1024.0, 1.0)] * 90 + [(1e7, 1.0)] * 6, 24).longest
        90.0
    """
    quota = sum(weight for weight, _ in arrays) / max(1, channels)
    by_channel: list[float] = []
    all_here = longest_here = 0.0
    room = quota
    for weight, seconds in arrays:
        all_here += seconds
        longest_here = max(longest_here, seconds)
        room -= weight
        if room <= 1e-9 * quota:
            # The rest of this array lies on further channels, the last of which may
            # have room for others.
            by_channel.append(all_here - longest_here)
            rest = -room % quota
            ends = min(rest, quota - rest) <= 1e-9 * quota
            room = quota - (0.0 if ends else rest)
            all_here = longest_here = 0.0 if ends else seconds
    by_channel.append(all_here - longest_here)
    return Waits(max(by_channel), sum(by_channel) / max(1, channels))
