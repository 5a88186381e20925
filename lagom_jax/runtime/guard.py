"""A measured comparison of a tuned program with the one that it replaces."""

from __future__ import annotations

import dataclasses
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
    """The order in which the two programs make steps; the first of each does not count.

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


@dataclasses.dataclass(eq=False)
class Turns:
    """A measurement under way: the programs take turns, and their times so far.

    Example:
        >>> turns = Turns(schedule(1))
        >>> turns.side, turns.complete
        ('baseline', False)
    """

    steps: tuple[Side, ...] = dataclasses.field(default_factory=schedule)
    times: list[tuple[Side, float]] = dataclasses.field(
        default_factory=list[tuple[Side, float]]
    )

    @property
    def side(self) -> Side:
        """The program whose turn it is."""
        return self.steps[len(self.times)]

    @property
    def complete(self) -> bool:
        """True if all turns were taken."""
        return len(self.times) == len(self.steps)

    def judged(self) -> MeasuredSteps:
        """The comparison; the first step of each came with what happens only once."""
        counted = self.times[2:]
        baseline = [t for side, t in counted if side == "baseline"]
        tuned = [t for side, t in counted if side == "tuned"]
        return judge(baseline, tuned)


def _error_of_median(times: Sequence[float]) -> float:
    middle = statistics.median(times)
    spread = statistics.median(abs(time - middle) for time in times)
    return _MEDIAN_ERROR * _MAD_TO_SIGMA * spread / len(times) ** 0.5
