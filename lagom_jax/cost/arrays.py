"""Placement of the arrays of a group on the channels of one NCCL kernel.

NCCL fills one channel after the other, each with its part of the bytes, and a channel
works through its arrays one by one, each with all steps of the ring. So an array costs
a small ring's latency wherever it lies, and many small ones on one channel cost as
many. Which latency that is, the protocol says that NCCL chose for it: up to 2.21 one
for the sum of all, later one for each bin of arrays of about one size.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from lagom_jax.cost.nccl_facts import NcclFacts

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


@dataclasses.dataclass(frozen=True, slots=True)
class Waits:
    """Seconds that arrays wait for others on their channel: all but the longest."""

    longest: float
    """On the channel with most of them."""
    mean: float
    """Over all channels: one that is done gives its SM back."""


NO_WAITS = Waits(0.0, 0.0)
"""Of a single array."""


def waits_of(
    arrays: Sequence[tuple[float, float]], channels: int, facts: NcclFacts
) -> Waits:
    """Waits of the arrays of a group for each other.

    Args:
        arrays: Bytes of each array, from small to large, and the seconds of its steps.
        channels: Of the communicator.
        facts: NCCL's constants.

    Example:
        Up to 2.22 ninety small arrays beside six large ones all lie on one channel.

        >>> from lagom_jax.cluster import Cluster
        >>> from lagom_jax.cost.nccl_facts import nccl_facts
        >>> arrays = [(1024.0, 1.0)] * 90 + [(1e7, 1.0)] * 6
        >>> a100 = Cluster.parse("a100:1x8")
        >>> waits_of(arrays, 24, nccl_facts(a100, "2.21.5")).longest
        90.0
        >>> waits_of(arrays, 24, nccl_facts(a100, "2.29.7")).longest <= 90
        True
    """
    floor = facts.array_bytes if facts.array_bytes > _LEAST_COUNTED_BYTES else 1
    weights = [max(float(floor), nbytes) for nbytes, _ in arrays]
    quota = sum(weights) / max(1, channels)
    by_channel: list[float] = []
    all_here = longest_here = 0.0
    room = quota
    for (_, seconds), weight in zip(arrays, weights, strict=True):
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
