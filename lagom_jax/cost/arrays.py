"""Placement of the arrays of a group on the channels of one NCCL kernel.

NCCL fills one channel after the other, each with its part of the bytes, and a channel
works through its arrays one by one, each with all steps of the ring. So an array costs
a small ring's latency wherever it lies, and many small ones on one channel cost as
many.
"""

from __future__ import annotations

from lagom_jax.cost.nccl_facts import NcclFacts


def most_on_a_channel(
    arrays: tuple[float, ...], channels: int, facts: NcclFacts
) -> int:
    """The most arrays that one channel has to work through.

    Args:
        arrays: Bytes of each array, from small to large.
        channels: Of the communicator.
        facts: NCCL's constants.

    Example:
        Up to 2.22 ninety small arrays beside six large ones all lie on one channel.

        >>> from lagom_jax.cluster import Cluster
        >>> from lagom_jax.cost.nccl_facts import nccl_facts
        >>> arrays = (1024.0,) * 90 + (1e7,) * 6
        >>> a100 = Cluster.parse("a100:1x8")
        >>> most_on_a_channel(arrays, 24, nccl_facts(a100, "2.21.5"))
        91
        >>> most_on_a_channel(arrays, 24, nccl_facts(a100, "2.29.7")) <= 91
        True
    """
    weights = [max(float(facts.array_bytes), nbytes) for nbytes in arrays]
    if facts.array_bytes <= 512:
        weights = [max(1.0, nbytes) for nbytes in arrays]
    quota = sum(weights) / max(1, channels)
    most = on_this = 0
    room = quota
    for weight in weights:
        on_this += 1
        room -= weight
        most = max(most, on_this)
        if room <= 1e-9 * quota:
            # The rest of this array lies on further channels, the last of which has
            # room for others.
            over = -room
            room = quota - over % quota
            on_this = 1 if over > 1e-9 * quota else 0
    return most
