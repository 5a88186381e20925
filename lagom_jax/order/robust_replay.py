"""Replays of one computation under several models at once, beside another step.

By each model the other step says how long this one may take. An order is worth what it
leaves of that on average, and what it takes beyond counts several times over.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

from lagom_jax.order.incremental import IncrementalReplay
from lagom_jax.order.splices import Splice
from lagom_jax.program.program import Task

_BEHIND: Final = 3.0
"""Weight of what one model loses, beside what all gain on average. With a hundred the
way through orders that are a little behind is closed: on the one step that was looked
at no model was behind with either, and others gained half a percent less."""
_AHEAD: Final = 5e-4
"""The least share of a step that is a lead: anything less is no gain in a plan."""
_NONE: frozenset[int] = frozenset()
_TOO_LONG = float("inf")


@dataclasses.dataclass(frozen=True, slots=True)
class StepBeside:
    """A step by one model, and how long it may take.

    Example:
        >>> step = StepBeside(1.0, 1.25)
        >>> step.share, step.changed(1.0).share
        (0.8, 1.6)
    """

    seconds: float
    limit: float
    """Of another step, which this one should not be behind."""

    @property
    def share(self) -> float:
        """Of the limit, what it takes."""
        return self.seconds / self.limit

    def changed(self, seconds: float) -> StepBeside:
        """The step when a part of it takes longer."""
        return dataclasses.replace(self, seconds=self.seconds + seconds)


def worth(shares: Sequence[float]) -> float:
    """Shares of limits as one figure: on average, and more where one is beyond.

    Args:
        shares: By each model.

    Example:
        >>> round(worth([0.8, 0.9]), 4), round(worth([0.6, 1.1]), 4)
        (0.85, 1.1515)
    """
    beyond = sum(max(0.0, share - 1 + _AHEAD) for share in shares)
    return sum(shares) / len(shares) + _BEHIND * beyond


class RobustReplay:
    """Replays like `IncrementalReplay`; their seconds are what an order is worth.

    They are shares of a step, the less the better.
    """

    def __init__(
        self,
        replays: Sequence[IncrementalReplay],
        steps: Sequence[StepBeside],
        times_run: int,
    ) -> None:
        """Begins with the present order.

        Args:
            replays: By each model, of one order; the likeliest comes first.
            steps: By each model the step that has the computation in this order.
            times_run: How often a step runs the computation.
        """
        self._replays, self._times_run = replays, times_run
        self._limits = [step.limit for step in steps]
        self._others = [
            step.seconds - times_run * replay.seconds
            for step, replay in zip(steps, replays, strict=True)
        ]
        """By each model: seconds of everything else in the step."""
        self._least = [
            self._share(place, sum(replay.alone))
            for place, replay in enumerate(replays)
        ]
        """By each model: what no order is below."""
        self.alone = replays[0].alone
        self.evaluations = 0
        self.seconds = self._worth()

    @property
    def order(self) -> Sequence[int]:
        """The present order."""
        return self._replays[0].order

    @property
    def excess_seconds(self) -> float:
        """Seconds of the present order beyond its kernels, by the likeliest model."""
        return self._replays[0].excess_seconds

    def task_seconds(self, task: Task) -> float:
        """Seconds of a task alone, by the likeliest model."""
        return self._replays[0].task_seconds(task)

    def seconds_with(
        self,
        splices: Sequence[Splice],
        limit: float = _TOO_LONG,
        changed: frozenset[int] = _NONE,
    ) -> float:
        """Worth of the present order with a change; infinite if not below a limit.

        Args:
            splices: As for `IncrementalReplay`.
            limit: What is no better is of no interest.
            changed: As for `IncrementalReplay`.
        """
        self.evaluations += 1
        shares, count = [*self._least], len(self._least)
        for place, replay in enumerate(self._replays):
            # Of each model a share counts in full at least once in so many.
            room = count * (limit - worth(shares)) * self._limits[place]
            most = sum(replay.alone) + room / self._times_run
            seconds = replay.seconds_with(splices, most, changed)
            if seconds == _TOO_LONG:
                return _TOO_LONG
            shares[place] = self._share(place, seconds)
        found = worth(shares)
        return found if found < limit else _TOO_LONG

    def take(self, splices: Sequence[Splice], changed: frozenset[int] = _NONE) -> float:
        """Makes a change the present order; its worth.

        Args:
            splices: As for `IncrementalReplay`.
            changed: Likewise.
        """
        for replay in self._replays:
            replay.take(splices, changed)
        self.seconds = self._worth()
        return self.seconds

    def _share(self, place: int, seconds: float) -> float:
        step = self._others[place] + self._times_run * seconds
        return step / self._limits[place]

    def _worth(self) -> float:
        return worth([self._share(n, r.seconds) for n, r in enumerate(self._replays)])
