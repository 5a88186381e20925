"""Two programs that take turns in the steps of a job, and which of them was faster."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final

from lagom_jax.online.steps import MAD_TO_SIGMA, OF_MEDIANS
from lagom_jax.plan import MeasuredSteps

BASELINE: Final = 0
TUNED: Final = 1
ROUNDS: Final = 6
_ORDER: Final = (BASELINE, TUNED, TUNED, BASELINE)
_SIGMAS: Final = 2.0


def schedule(rounds: int = ROUNDS) -> tuple[int, ...]:
    """The order in which the two programs make steps; the first of each does not count.

    Neither side comes always first, so that neither has the better of a drift.

    Example:
        >>> schedule(1)
        (0, 1, 0, 1, 1, 0)
    """
    return (BASELINE, TUNED, *(_ORDER * rounds))


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
    variance = _variance_of_median(baseline) + _variance_of_median(tuned)
    before, after = statistics.median(baseline), statistics.median(tuned)
    noise = _SIGMAS * math.sqrt(variance)
    steps = min(len(baseline), len(tuned))
    return MeasuredSteps(before, after, noise, steps, kept=before - after > noise)


def _variance_of_median(times: Sequence[float]) -> float:
    middle = statistics.median(times)
    spread = statistics.median(abs(time - middle) for time in times)
    return OF_MEDIANS * (MAD_TO_SIGMA * spread) ** 2 / len(times)
