"""Lagom: start small, buy speed where it is cheapest, stop where it no longer pays.

The paper's descent (arXiv 2602.20656), on paths from cheap to fast, and beyond it a
search around what it found. docs/search.md says which of these steps was worth it.
"""

from __future__ import annotations

import dataclasses
import itertools

from lagom_jax.search.frontier import Point, frontier
from lagom_jax.search.neighbours import Neighbours
from lagom_jax.search.policy import (
    Found,
    Move,
    Objective,
    Scorer,
    replaced,
    scenes_of,
    step_time,
)
from lagom_jax.search.stage import Choice, Score, Stage

# Shares of a step below this are no improvement, but rounding.
_WORTH = 1e-6
_SWEEPS = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Lagom:
    """Chooses what makes the step shortest, and no more than that.

    Example:
        >>> Lagom().name
        'lagom'
    """

    name: str = "lagom"
    objective: Objective = step_time
    look_around: bool = True
    """Whether the descent is followed by a local search, which may take an allocation
    back or change algorithm and protocol."""
    jointly: bool = True
    """Whether that search also moves two groups at once that share a window."""
    least_gain: float = 1e-4
    """Groups whose choice gives less than this share of the step are left alone."""

    def choose(self, stage: Stage) -> Found:
        """One component after another: they have nothing to do with each other."""
        choice = stage.untouched
        evaluations, moves, regions = 0, list[Move](), dict[int, str]()
        before = stage.score(choice).step_seconds
        for members in stage.components():
            search = _Component(self, stage, members)
            choice, region = search.run(choice, self.least_gain * before)
            evaluations += search.score.evaluations
            moves += search.moves
            regions |= dict.fromkeys(members, region)
        return Found(choice, evaluations, tuple(moves), regions)


class _Component:
    """Groups that meet in windows, and the search among them."""

    def __init__(self, policy: Lagom, stage: Stage, members: tuple[int, ...]) -> None:
        self._policy = policy
        self._stage = stage
        self._members = members
        self._paths: dict[int, tuple[Point, ...]] = {
            group: frontier(stage, group) for group in members
        }
        self.score = Scorer(stage, scenes_of(stage, members))
        self.moves: list[Move] = []

    def run(self, choice: Choice, least: float) -> tuple[Choice, str]:
        """The choice with this component's groups chosen, and their region."""
        start = self._at(choice, dict.fromkeys(self._members, 0))
        ends = {group: len(path) - 1 for group, path in self._paths.items()}
        fastest = self._at(choice, ends)
        best = min((start, fastest, choice), key=self._cost)
        region = "balanced"
        if _is_hidden(self.score(start)):
            region = "hidden"
        else:
            if not _is_hidden(self.score(fastest)):
                region = "exposed"
            best = min((self._descend(start), best), key=self._cost)
        if self._policy.look_around:
            best = self._look_around(best)
        return self._take_back(best, choice, least), region

    def _cost(self, choice: Choice) -> float:
        return self._policy.objective(self.score(choice), self._members[0])

    def _at(self, choice: Choice, places: dict[int, int]) -> Choice:
        for group, place in places.items():
            choice = replaced(choice, group, self._paths[group][place].candidate)
        return choice

    def _descend(self, choice: Choice) -> Choice:
        """Takes the cheapest step again and again, and returns the best place seen."""
        places = dict.fromkeys(self._members, 0)
        prices: dict[int, float] = {}
        best, idle = choice, 0
        while idle <= len(self._members) and not _is_hidden(self.score(choice)):
            open_ = [g for g in self._members if places[g] + 1 < len(self._paths[g])]
            if not open_:
                break
            for group in open_:
                if group not in prices:
                    after = self._next(choice, group, places)
                    prices[group] = self._price(choice, after, group)
            group = min(open_, key=lambda g: prices[g])
            after = self._next(choice, group, places)
            self._record(group, choice, after)
            choice = after
            places[group] += 1
            # Its own price is another now, and so is that of all who share a window.
            met = {group, *self._neighbours(group)}
            prices = {g: price for g, price in prices.items() if g not in met}
            better = self._cost(choice) < self._cost(best) * (1 - _WORTH)
            best, idle = (choice, 0) if better else (best, idle + 1)
        return best

    def _next(self, choice: Choice, group: int, places: dict[int, int]) -> Choice:
        return replaced(choice, group, self._paths[group][places[group] + 1].candidate)

    def _price(self, before: Choice, after: Choice, group: int) -> float:
        """`H`; without bound where the collective does not get faster."""
        one, other = self.score(before), self.score(after)
        saved = one.own_seconds.get(group, 0.0) - other.own_seconds.get(group, 0.0)
        added = other.totals.compute_seconds - one.totals.compute_seconds
        if saved <= 0:
            return -float("inf") if added < 0 else float("inf")
        return added / saved

    def _neighbours(self, group: int) -> set[int]:
        """Groups that share a window with one."""
        scenes = self._stage.scenes
        return {g for s in self._stage.scenes_of[group] for g in scenes[s].groups}

    def _record(self, group: int, before: Choice, after: Choice) -> None:
        price = self._price(before, after, group)
        self.moves.append(
            Move(
                group,
                before[group],
                after[group],
                None if abs(price) == float("inf") else price,
                self.score(after).step_seconds,
            )
        )

    def _look_around(self, choice: Choice) -> Choice:
        groups = self._stage.space.groups
        near = {group: Neighbours(groups[group]) for group in self._members}
        for _ in range(_SWEEPS):
            before = choice
            for group in self._members:
                around = near[group].of(choice[group], groups[group].usual[0])
                options = [replaced(choice, group, c) for c in around]
                choice = self._better(choice, options, group)
            if self._policy.jointly:
                choice = self._move_two(choice)
            if choice == before:
                break
        return choice

    def _better(self, choice: Choice, options: list[Choice], group: int) -> Choice:
        best = min(options, key=self._cost, default=choice)
        if self._cost(best) < self._cost(choice) * (1 - _WORTH):
            self._record(group, choice, best)
            return best
        return choice

    def _move_two(self, choice: Choice) -> Choice:
        """One group up its path and another down."""
        for one, other in itertools.combinations(self._members, 2):
            if other in self._neighbours(one):
                options = [
                    replaced(replaced(choice, one, a), other, b)
                    for a in self._beside(choice, one)
                    for b in self._beside(choice, other)
                ]
                choice = self._better(choice, options, one)
        return choice

    def _beside(self, choice: Choice, group: int) -> list[int]:
        """The next places on a group's path, seen from where it is."""
        path = self._paths[group]
        own = self._seconds(group, choice[group])
        faster = [p for p in path if p.seconds < own]
        slower = [p for p in path if p.seconds > own]
        return [p.candidate for p in (*slower[-1:], *faster[:1])]

    def _seconds(self, group: int, candidate: int) -> float:
        site = self._stage.space.groups[group].sites[0]
        return self._stage.price(site, candidate).seconds

    def _take_back(self, choice: Choice, before: Choice, least: float) -> Choice:
        """Leaves alone what gives next to nothing, and never returns worse."""
        for group in self._members:
            alone = replaced(choice, group, 0)
            if self._cost(alone) <= self._cost(choice) + least:
                choice = alone
        return choice if self._cost(choice) < self._cost(before) else before


def _is_hidden(score: Score) -> bool:
    """Whether compute never stands still for a collective."""
    return score.totals.exposed_seconds <= _WORTH * score.step_seconds
