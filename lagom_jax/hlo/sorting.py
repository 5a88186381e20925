"""Sorting: how often a sort goes over its data, and how often it compares."""

from __future__ import annotations

import dataclasses

_ELEMENTS_PER_THREAD = 4
_THREADS_PER_BLOCK = 1024
_SHARED_BYTES = 48 * 1024
_DIGIT_BITS = 8


@dataclasses.dataclass(frozen=True, slots=True)
class SortPasses:
    """The cost of sorting rows.

    Example:
        >>> bitonic_sort(length=1 << 20, rows=1, element_bytes=8).passes
        45
    """

    passes: int
    """Times that all data is read and written again."""
    comparisons: float


def bitonic_sort(length: int, rows: int, element_bytes: int) -> SortPasses:
    """XLA's own sorting kernel, a bitonic network.

    A network over 2^s elements has s stages, stage i comparing all elements with a
    partner i times. Partners within a tile that fits into shared memory are compared
    in one pass together; every step between tiles is a pass of its own.

    Args:
        length: Elements that are sorted against each other.
        rows: How many such rows there are.
        element_bytes: Bytes of one element in all arrays that are sorted together.

    Example:
        >>> bitonic_sort(length=1000, rows=64, element_bytes=4)
        SortPasses(passes=1, comparisons=1760000.0)
    """
    stages = max(0, (length - 1).bit_length())
    tile = min(
        _ELEMENTS_PER_THREAD * _THREADS_PER_BLOCK,
        _SHARED_BYTES // max(1, element_bytes),
    )
    beyond = max(0, stages - (tile.bit_length() - 1))
    # The stage that is j beyond the tile takes j steps between tiles and one within.
    passes = 1 + beyond + beyond * (beyond + 1) // 2
    return SortPasses(passes, rows * length / 2 * stages * (stages + 1) / 2)


def radix_sort(key_bytes: int) -> int:
    """Passes of CUB's radix sort: one for each digit of eight bits in the key.

    Example:
        >>> radix_sort(4)
        4
    """
    return max(1, key_bytes * 8 // _DIGIT_BITS)
