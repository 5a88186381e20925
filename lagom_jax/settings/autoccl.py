"""AutoCCL: coordinate descent on each collective's own time.

As published (NSDI 2025, pp. 667-683): a subspace for each algorithm and protocol,
samples first, then descent along one axis after another, restarts, and subspaces that
fall behind are dropped. What differs from Lagom is what is looked at and in which
order; candidates and scores are the same.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

from lagom_jax.plan.setting import Cap, Setting
from lagom_jax.settings.policy import (
    Found,
    Objective,
    Scorer,
    own_time,
    replaced,
)
from lagom_jax.settings.space import Choice, Group
from lagom_jax.settings.stage import Stage

_STARTS = 5
_SURVEYED = 3
_LEAST_STEP = 0.01
_GROWTH = 0.8
# A subspace is dropped that is this much worse than the best: after five candidates,
# and after a tenth of its budget.
_HOPELESS, _BEHIND = 3.0, 1.5
_FIRST_LOOK = 5

Place = tuple[int, ...]
"""A candidate's place in its subspace: channels, threads and chunk, as ranks."""


@dataclasses.dataclass(frozen=True, slots=True)
class AutoCcl:
    """Chooses what makes each group's collectives fastest.

    Example:
        >>> AutoCcl().name
        'autoccl'
    """

    name: str = "autoccl"
    objective: Objective = own_time
    samples: int = 20
    """Candidates tried before the descents, over all subspaces of a group."""
    budget: int = 50
    """Candidates tried in the descents."""

    def choose(self, stage: Stage) -> Found:
        """One group after another, each by its own time."""
        choice, evaluations = stage.untouched, 0
        for number, group in enumerate(stage.space.groups):
            score = Scorer(stage, tuple(stage.scenes_of[number]))
            tuner = _GroupTuner(self, group, number, choice, score)
            choice = replaced(choice, number, tuner.best())
            evaluations += score.evaluations
        return Found(choice, evaluations)


class _GroupTuner:
    def __init__(
        self, policy: AutoCcl, group: Group, number: int, choice: Choice, score: Scorer
    ) -> None:
        self._policy = policy

        def cost(candidate: int) -> float:
            return policy.objective(score(replaced(choice, number, candidate)), number)

        subspaces = _subspaces(group)
        each = max(1, policy.samples // max(1, len(subspaces)))
        budget = max(1, policy.budget // max(1, len(subspaces)))
        self._cost = cost
        self._descents = [
            _Descent(places, cost, each, budget, random.Random(f"{number}.{n}"))
            for n, places in enumerate(subspaces)
        ]

    def best(self) -> int:
        """The fastest candidate that was found; 0 is NCCL's own."""
        best, least = 0, self._cost(0)
        for descent in self._descents:
            found, cost = descent.best
            if cost < least:
                best, least = found, cost
        running = [d for d in self._descents if not d.is_behind(least)]
        self._hand_on(self._descents, running)
        while running:
            still: list[_Descent] = []
            for descent in running:
                goes_on = descent.advance()
                found, cost = descent.best
                if cost < least:
                    best, least = found, cost
                if goes_on:
                    still.append(descent)
            still = [d for d in still if not d.is_behind(least)]
            self._hand_on(running, still)
            running = still
        return best

    @staticmethod
    def _hand_on(before: list[_Descent], running: list[_Descent]) -> None:
        """Shares what those that are over have left among those that are not."""
        left = sum(d.give_up() for d in before if d not in running)
        for number, descent in enumerate(running):
            descent.budget += (left + number) // len(running)


class _Descent:
    """The search in one subspace."""

    def __init__(
        self,
        places: dict[Place, int],
        cost: Callable[[int], float],
        samples: int,
        budget: int,
        dice: random.Random,
    ) -> None:
        self._places = places
        self._cost = cost
        self.budget = budget
        self._first_budget = budget
        self._dice = dice
        self._seen: dict[Place, float] = {}
        self._axes = [
            axis
            for axis in range(3)
            if len({place[axis] for place in places}) > 1 or axis == 0
        ]
        ordered = sorted(places)
        # A stride, shaken: a plain one would meet the same chunk each time.
        stride = max(1, -(-len(ordered) // samples))
        for start in range(0, len(ordered), stride):
            self._visit(dice.choice(ordered[start : start + stride]))
        self._sampled = len(self._seen)
        self._starts = 1
        self._begin(min(self._seen, key=lambda p: (self._seen[p], p)))

    def _begin(self, place: Place) -> None:
        self._here = place
        self._axis, self._sign = 0, 1
        self._step, self._misses = _LEAST_STEP, 0

    def _visit(self, place: Place) -> float:
        if place not in self._seen:
            self._seen[place] = self._cost(self._places[place])
        return self._seen[place]

    @property
    def best(self) -> tuple[int, float]:
        """The best candidate so far, and its cost."""
        place = min(self._seen, key=lambda p: (self._seen[p], p))
        return self._places[place], self._seen[place]

    @property
    def _trained(self) -> int:
        return len(self._seen) - self._sampled

    def give_up(self) -> int:
        """Returns the rest of its budget, to be spent elsewhere."""
        left = max(0, self.budget - self._trained)
        self.budget -= left
        return left

    def is_behind(self, least: float) -> bool:
        """True if this subspace is not worth going on with."""
        cost = self.best[1]
        if self._trained >= 0.1 * self._first_budget and cost > _BEHIND * least:
            return True
        return len(self._seen) >= _FIRST_LOOK and cost > _HOPELESS * least

    def advance(self) -> bool:
        """Surveys once; False when this descent is over."""
        if self._trained >= self.budget or len(self._seen) == len(self._places):
            return False
        here = self._seen[self._here]
        ahead = self._survey()
        costs = {place: self._visit(place) for place in ahead}
        best = min(costs, key=lambda p: (costs[p], p), default=self._here)
        if ahead and costs[best] < here:
            self._step = max(_LEAST_STEP, _GROWTH * (here - costs[best]) / here)
            self._here, self._misses = best, 0
            return True
        self._misses += 1
        self._step = _LEAST_STEP
        if self._sign > 0:
            self._sign = -1
        else:
            self._axis, self._sign = (self._axis + 1) % len(self._axes), 1
        return self._misses < 2 * len(self._axes) or self._restart()

    def _survey(self) -> list[Place]:
        """The farthest three of those that lie ahead within the step."""
        axis, here = self._axes[self._axis], self._here
        others = [other for other in range(len(here)) if other != axis]
        ahead: list[tuple[int, float, Place]] = []
        for place in self._places:
            along = self._sign * (place[axis] - here[axis])
            if along > 0 and place not in self._seen:
                across = 0
                for other in others:
                    across += (place[other] - here[other]) ** 2
                ahead.append((along, across / along**2, place))
        ahead.sort()
        count = max(_SURVEYED, int(self._step * len(ahead)))
        left = self.budget - self._trained
        return [place for _, _, place in ahead[:count][-_SURVEYED:]][:left]

    def _restart(self) -> bool:
        unseen = sorted(place for place in self._places if place not in self._seen)
        spent = self._trained >= self.budget
        if self._starts == _STARTS or spent or not unseen:
            return False
        self._starts += 1
        place = self._dice.choice(unseen)
        self._visit(place)
        self._begin(place)
        return True


def _subspaces(group: Group) -> list[dict[Place, int]]:
    """For each algorithm and protocol its candidates by their place."""
    found: dict[tuple[str, str], dict[tuple[int, int, int], int]] = {}
    for number, candidate in enumerate(group.candidates):
        if isinstance(candidate, Setting):
            space = (candidate.algorithm, candidate.protocol)
            values = (candidate.channels, candidate.threads, candidate.chunk_bytes)
            found.setdefault(space, {})[values] = number
        elif isinstance(candidate, Cap):
            found.setdefault(("", ""), {})[candidate.channels, 0, 0] = number
    return [_ranked(members) for members in found.values()]


def _ranked(members: dict[tuple[int, int, int], int]) -> dict[Place, int]:
    ladders = [sorted({values[axis] for values in members}) for axis in range(3)]
    return {
        tuple(
            ladder.index(value) for ladder, value in zip(ladders, values, strict=True)
        ): n
        for values, n in members.items()
    }
