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


def kept_bytes(
    parameters: int,
    *,
    bits: int,
    fragment: int,
    in_flight: int,
    momentum: bool = True,
    compensated: bool = True,
    parameter_bytes: int = 4,
) -> int:
    """Bytes that the outer optimiser keeps in each region.

    The global parameters, momentum and what compression left unsent in float32, and for
    each fragment that is under way the mean and the snapshot that compensation needs.

    Args:
        parameters: Numbers in the model.
        bits: Of each number on its way.
        fragment: Numbers in the largest fragment.
        in_flight: The most fragments that are under way at once.
        momentum: Whether the outer optimiser has any.
        compensated: Whether delays are compensated.
        parameter_bytes: Of each number of the parameters.

    Example:
        >>> kept_bytes(1000, bits=4, fragment=64, in_flight=1)
        12512
    """
    whole = parameters * (parameter_bytes + 4 * momentum + 4 * (bits < 32))
    padded = -(-fragment // BLOCK) * BLOCK
    return whole + in_flight * padded * 4 * (1 + compensated)
