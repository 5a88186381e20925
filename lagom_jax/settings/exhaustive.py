"""The true optimum, where there are few enough choices to try them all."""

from __future__ import annotations

import dataclasses
import itertools
import math

from lagom_jax.errors import LagomError
from lagom_jax.settings.policy import (
    Found,
    Objective,
    Scorer,
    replaced,
    scenes_of,
    step_time,
)
from lagom_jax.settings.stage import Stage

MOST_COMBINATIONS = 100_000
# A share of the time that is a difference of sums, and no gain.
_ROUNDING = 1e-9


class TooManyError(LagomError):
    """There are more choices than can be tried."""


@dataclasses.dataclass(frozen=True, slots=True)
class Exhaustive:
    """Tries every combination of the groups that meet in windows.

    Groups that never meet do not matter to each other, so that the best of each is the
    best of all.

    Example:
        >>> Exhaustive().name
        'exhaustive'
    """

    name: str = "exhaustive"
    objective: Objective = step_time
    most: int = MOST_COMBINATIONS
    """Combinations that are tried at most, of groups that meet."""

    def choose(self, stage: Stage) -> Found:
        """The best choice there is.

        Raises:
            TooManyError: There are too many.
        """
        choice, evaluations = stage.untouched, 0
        counts = [len(group.candidates) for group in stage.space.groups]
        for members in stage.components():
            count = math.prod(counts[group] for group in members)
            if count > self.most:
                raise TooManyError(
                    f"the groups of collectives that meet in the same windows "
                    f"({len(members)}) have {count:.3g} combinations, more than the "
                    f"{self.most} that are tried; a coarser grid (--grid coarse) has "
                    "fewer"
                )
            score = Scorer(stage, scenes_of(stage, members))
            untouched = self.objective(score(choice), members[0])
            best, least = choice, untouched
            for picked in itertools.product(*(range(counts[g]) for g in members)):
                option = choice
                for group, candidate in zip(members, picked, strict=True):
                    option = replaced(option, group, candidate)
                cost = self.objective(score(option), members[0])
                if cost < least:
                    best, least = option, cost
            evaluations += score.evaluations
            if least < untouched * (1 - _ROUNDING):
                choice = best
        return Found(choice, evaluations)
