"""Step times with their drift taken out: a few steps beside their neighbours.

A job's steps become slower and faster for hours, some hosts lag for a while, and one
step in a hundred takes much longer. So a candidate is never compared with steps of
another hour: its few steps stand beside those directly before and after them.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Final

NEIGHBOURS: Final = 12
"""Steps on each side that a candidate is compared with."""
FEWEST_NEIGHBOURS: Final = 3
LEAST_NOISE: Final = 2e-4
"""No clock of a host sees less than this share of a step."""
# A median absolute deviation is so much smaller than a standard deviation, and the
# variance of a median so much larger than that of a mean.
MAD_TO_SIGMA: Final = 1.4826
OF_MEDIANS: Final = math.pi / 2


@dataclasses.dataclass(frozen=True, slots=True)
class StepTime:
    """One step of a job."""

    candidate: int
    """The candidate that ran."""
    seconds: float
    """From the end of the step before, by one clock."""
    counts: bool = True
    """False for what happens only once: the first step of a program."""


@dataclasses.dataclass(frozen=True, slots=True)
class MeasuredBeside:
    """Steps of one candidate beside those of another, directly before and after."""

    candidate: int
    other: int
    log_ratio: float
    """The logarithm of the candidate's time over the other's."""
    variance: float
    noise: float
    """The standard deviation of one step, as a share of it."""
    steps: int
    """Of the candidate, those that count."""


def noise_of(logs: Sequence[float]) -> float:
    """The noise of single steps: of what one step has and the next has not.

    Drift does not count, nor does the step that takes ten times as long.

    Example:
        >>> noise_of([0.00, 0.01, 0.02, 0.03, 0.04]) < 0.011
        True
    """
    changes = [abs(b - a) for a, b in itertools.pairwise(logs)]
    if not changes:
        return LEAST_NOISE
    spread = MAD_TO_SIGMA * statistics.median(changes) / math.sqrt(2)
    return max(spread, LEAST_NOISE)


def beside(
    before: Sequence[StepTime], trial: Sequence[StepTime], after: Sequence[StepTime]
) -> MeasuredBeside | None:
    """Compares a few steps with their neighbours.

    Args:
        before: Steps of another candidate, directly before.
        trial: The steps in question, all of one candidate.
        after: Steps of the other one, directly after.

    Returns:
        None where there is too little to compare.

    Example:
        >>> usual, faster = StepTime(0, 1.0), StepTime(1, 0.9)
        >>> found = beside([usual] * 4, [faster] * 2, [usual] * 4)
        >>> round(found.log_ratio, 3)
        -0.105
    """
    own = [math.log(step.seconds) for step in trial if step.counts]
    sides = [
        [math.log(step.seconds) for step in side if step.counts]
        for side in (before[-NEIGHBOURS:], after[:NEIGHBOURS])
    ]
    if not own or min(map(len, sides)) < FEWEST_NEIGHBOURS:
        return None
    first, last = map(statistics.median, sides)
    noise = statistics.median([noise_of(side) for side in sides])
    # A median of few is a mean of fewer; of two it is the mean.
    found = statistics.median(own) - (first + last) / 2
    efficiency = 1.0 if len(own) < 3 else OF_MEDIANS
    neighbours = sum(OF_MEDIANS / len(side) for side in sides) / 4
    variance = noise**2 * (efficiency / len(own) + neighbours)
    # Where the level itself has changed, nobody knows when.
    jump = max(0.0, abs(last - first) - 3 * noise)
    return MeasuredBeside(
        trial[0].candidate,
        before[-1].candidate,
        found,
        variance + (jump / 2) ** 2,
        noise,
        len(own),
    )
