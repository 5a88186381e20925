"""Numbers as people read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))

# Differences of sums of seconds that are equal but for rounding, in seconds.
_ROUNDING = 1e-13


def in_seconds(seconds: float) -> str:
    """A duration in the unit that suits it.

    Example:
        >>> in_seconds(0.4261), in_seconds(12.5e-6), in_seconds(-2.7e-20)
        ('426 ms', '12.5 us', '0')
    """
    if abs(seconds) < _ROUNDING:
        return "0"
    return _in_largest(seconds, _TIMES) or f"{seconds * 1e9:.3g} ns"


def in_signed_seconds(seconds: float) -> str:
    """A difference of durations, with its sign.

    Example:
        >>> in_signed_seconds(-0.0032), in_signed_seconds(-2.7e-20)
        ('-3.20 ms', '0')
    """
    return _signed(seconds, in_seconds)


def in_bytes(count: float) -> str:
    """An amount of data, in powers of a thousand.

    Example:
        >>> in_bytes(33554432), in_bytes(4)
        ('33.6 MB', '4 B')
    """
    return _in_largest(count, _BYTES) or f"{count:.0f} B"


def in_signed_bytes(count: float) -> str:
    """A difference of amounts, with its sign.

    Example:
        >>> in_signed_bytes(-33554432), in_signed_bytes(0)
        ('-33.6 MB', '0')
    """
    return _signed(count, in_bytes)


def in_percent(part: float, whole: float) -> str:
    """A part of a whole.

    Example:
        >>> in_percent(1, 8), in_percent(1, 0)
        ('12 %', '-')
    """
    if not whole:
        return "-"
    share = 100 * part / whole
    return f"{share:.0f} %" if share >= 10 or not share else f"{share:.1f} %"


def counted(number: int, thing: str) -> str:
    """So many things, in the plural where there is not exactly one.

    Example:
        >>> counted(1, "device"), counted(64, "device")
        ('1 device', '64 devices')
    """
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _in_largest(amount: float, units: Iterable[tuple[float, str]]) -> str | None:
    """An amount in the largest unit that it fills; None if it fills none."""
    for unit, name in units:
        if amount >= unit:
            return f"{_three_digits(amount / unit)} {name}"
    return None


def _signed(amount: float, shown: Callable[[float], str]) -> str:
    text = shown(abs(amount)) if amount else "0"
    return text if text == "0" else f"{'-' if amount < 0 else '+'}{text}"


def _three_digits(value: float) -> str:
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def printable(text: str) -> str:
    r"""A text that does nothing to a terminal but be seen there.

    Example:
        >>> printable("a\x1b]0;name\x07")
        'a\\x1b]0;name\\x07'
    """
    return "".join(
        letter
        if letter.isprintable() or letter in "\n\t"
        else letter.encode("unicode_escape").decode()
        for letter in text
    )
