"""A maximum with a soft corner, for times of which either may limit a task."""

from __future__ import annotations

_SHARPNESS = 4.0


def soft_maximum(one: float, other: float) -> float:
    """The longer of two times, and more where they are about equal.

    Args:
        one: One time; not negative.
        other: The other.

    Example:
        >>> round(soft_maximum(1.0, 3.0), 2), round(soft_maximum(1.0, 1.0), 2)
        (3.01, 1.19)
    """
    longest = max(one, other)
    if longest <= 0:
        return 0.0
    ratio = min(one, other) / longest
    return longest * (1 + ratio**_SHARPNESS) ** (1 / _SHARPNESS)
