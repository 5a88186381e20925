"""Volume of exchanges, and memory that strategies keep, in bytes."""

from __future__ import annotations

from typing import Final

BITS: Final = (32, 16, 8, 4)
"""Bits of an outer gradient on its way."""
BLOCK: Final = 64
"""Numbers that share a scale, where there are 8 or 4 bits."""
_SCALE_BYTES: Final = 2


def message_bytes(size: int, bits: int) -> float:
    """Bytes of so many numbers as a message.

    Example:
        >>> message_bytes(640, 4), message_bytes(640, 32)
        (340.0, 2560.0)
    """
    scales = _SCALE_BYTES * -(-size // BLOCK) if bits < 16 else 0
    return size * bits / 8 + scales


def sent_bytes(size: int, bits: int, regions: int) -> float:
    """Bytes that a region sends for one exchange of so many numbers.

    In 32 bits an all-reduce around a ring; with fewer each region's message goes to
    every other, and is added up there in float32.

    Example:
        >>> sent_bytes(1000, 32, 4), sent_bytes(640, 4, 4)
        (6000.0, 1020.0)
    """
    if regions == 1:
        return 0.0
    if bits == 32:
        return 2 * (regions - 1) / regions * message_bytes(size, bits)
    return (regions - 1) * message_bytes(size, bits)
