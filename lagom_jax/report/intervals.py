"""Intervals of predicted figures in words."""

from __future__ import annotations

from lagom_jax.plan import Interval, Uncertainty
from lagom_jax.plan.interval import times_as_fast
from lagom_jax.units import in_seconds

MODELS_IN_WORDS = (
    "models: the cost model with other constants that its measurements leave open"
)
"""The meaning of figures in brackets, for a legend."""


def in_range(interval: Interval) -> str:
    """The ends of an interval of seconds; empty where there is none.

    Example:
        >>> in_range(Interval(0.310, 0.326, 0.345)), in_range(Interval(1.0, 1.0, 1.0))
        ('310 ms to 345 ms', '')
    """
    if interval.low == interval.high:
        return ""
    return f"{in_seconds(interval.low)} to {in_seconds(interval.high)}"


def in_brackets(interval: Interval | None) -> str:
    """The ends of an interval as they follow a figure; empty where there are none.

    Example:
        >>> in_brackets(Interval(0.310, 0.326, 0.345)), in_brackets(None)
        (' (310 ms to 345 ms)', '')
    """
    ends = in_range(interval) if interval is not None else ""
    return f" ({ends})" if ends else ""


def with_range(interval: Interval) -> str:
    """Seconds, and the ends of their interval in brackets.

    Example:
        >>> with_range(Interval(0.310, 0.326, 0.345))
        '326 ms (310 ms to 345 ms)'
    """
    return in_seconds(interval.expected) + in_brackets(interval)


def before_and_after(
    before: float, after: float, found: Uncertainty | None, arrow: str = "→"
) -> str:
    """The step before and after, the second with its interval.

    Args:
        before: Seconds of a step as it was.
        after: As decided.
        found: How sure both are; None where nobody asked.
        arrow: Between the two.

    Example:
        >>> before_and_after(0.4, 0.3, Uncertainty.of(0.4, 0.3, [0.4, 0.4], [0.3, 0.3]))
        '400 ms → 300 ms'
    """
    words = in_seconds(after) if found is None else with_range(found.tuned)
    return f"{in_seconds(before)} {arrow} {words}"


def gain_in_words(before: float, after: float, found: Uncertainty | None) -> str:
    """The speedup, and how sure it is.

    Args:
        before: Seconds of a step as it was.
        after: As decided.
        found: How sure both are; None where nobody asked.

    Example:
        >>> gain_in_words(0.4, 0.3, None)
        '1.33 times as fast'
    """
    words = f"{times_as_fast(before, after):.2f} times as fast"
    return words if found is None else f"{words} ({sureness_in_words(found)})"


def sureness_in_words(found: Uncertainty) -> str:
    """The interval of a speedup, and whether it could be a loss.

    Example:
        >>> found = Uncertainty.of(0.4, 0.3, [0.38] * 20, [0.3] * 20)
        >>> sureness_in_words(found)
        '1.27 to 1.33 in 18 of 20 models; never slower'
    """
    low, high = found.speedup.low, found.speedup.high
    ends = f"{low:.2f} to {high:.2f} in {found.within} of {found.models} models"
    slower = f"slower in {found.slower}" if found.slower else "never slower"
    return f"{ends}; {slower}"
