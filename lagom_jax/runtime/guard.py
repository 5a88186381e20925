"""Whether a tuned program is faster than the one it replaces, measured."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

from lagom_jax.plan import MeasuredSteps

Side: TypeAlias = Literal["baseline", "tuned"]
ROUNDS: Final = 6
_ORDER: Final[tuple[Side, ...]] = ("baseline", "tuned", "tuned", "baseline")
# A median absolute deviation is so much smaller than a normal deviation, and so much
# larger than one is the error of a median.
_MAD_TO_SIGMA: Final = 1.4826
_MEDIAN_ERROR: Final = 1.2533
_SIGMAS: Final = 2.0


def schedule(rounds: int = ROUNDS) -> tuple[Side, ...]:
    """Which program makes which step; the first of each does not count.

    Neither side comes always first, so that neither has the better of a drift.

    Example:
        >>> schedule(1)
        ('baseline', 'tuned', 'baseline', 'tuned', 'tuned', 'baseline')
    """
    return ("baseline", "tuned", *(_ORDER * rounds))


def judge(baseline: Sequence[float], tuned: Sequence[float]) -> MeasuredSteps:
    """Compares medians with their spread.

    Args:
        baseline: Seconds of steps.
        tuned: Likewise.

    Example:
        >>> judge([1.0, 1.1, 0.9, 1.0], [0.5, 0.6, 0.4, 0.5]).kept
        True
        >>> judge([1.0, 1.1, 0.9, 1.0], [1.0, 1.1, 0.9, 0.99]).kept
        False
    """
    errors = [_error_of_median(times) for times in (baseline, tuned)]
    before, after = statistics.median(baseline), statistics.median(tuned)
    noise = _SIGMAS * sum(error**2 for error in errors) ** 0.5
    steps = min(len(baseline), len(tuned))
    return MeasuredSteps(before, after, noise, steps, kept=before - after > noise)


def _error_of_median(times: Sequence[float]) -> float:
    middle = statistics.median(times)
    spread = statistics.median(abs(time - middle) for time in times)
    return _MEDIAN_ERROR * _MAD_TO_SIGMA * spread / len(times) ** 0.5
