"""Lagom: start small, buy speed where it is cheapest, stop where it no longer pays.

The paper's descent (arXiv 2602.20656), on paths from cheap to fast, and beyond it a
search around what it found. Where coarser controls are known, what is found with them
comes first. docs/explanation/search.md says which of these steps was worth it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

from lagom_jax.settings.frontier import path, points, rungs, seconds_alone
from lagom_jax.settings.neighbours import NearbyCandidates
from lagom_jax.settings.policy import (
    Found,
    Move,
    Objective,
    Scorer,
    replaced,
    scenes_of,
    step_time,
)
from lagom_jax.settings.space import Choice, Space
from lagom_jax.settings.stage import Score, Stage

# Shares of a step below this are no improvement, but rounding.
_WORTH = 1e-6
_SWEEPS = 8
# A window may hold many groups; a group looks at so many of them, which keeps the
# evaluations in proportion to the groups.
_PARTNERS = 4


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
    """True if the descent is followed by a local search, which may take an allocation
    back or change algorithm and protocol."""
    jointly: bool = True
    """True if that search also moves two groups at once that share a window."""
    buys: Literal["cheapest", "dearest", "first"] = "cheapest"
    """The group whose next step is taken: that with the least `H`, as the paper has it;
    the others are there to be compared with it."""
    least_gain: float = 5e-4
    """Groups are left alone where that costs less than their part of this share of the
    step: all of them together cost less than the share."""

    def choose(self, stage: Stage) -> Found:
        """One component after another: they have nothing to do with each other.

        The answer is never worse than what is found with coarser controls.
        """
        choice = stage.untouched
        coarse = Found(choice, 0)
        if stage.space.coarser is not None:
            found = self.choose(stage.with_space(stage.space.coarser))
            coarse = _carried(found, stage.space)
        evaluations = coarse.evaluations
        moves, regions = list[Move](), dict[int, str]()
        before = stage.step_seconds(choice)
        least = self.least_gain * before / max(1, len(choice))
        for members in stage.components():
            search = _Component(self, stage, members)
            choice, region = search.run(choice, coarse, least)
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
        self._met = {group: _nearest(stage, group) for group in members}
        self._seconds = {
            group: seconds_alone(stage, group) for group in members if self._met[group]
        }
        found = {group: points(stage, group) for group in members}
        self._paths = {group: path(found[group]) for group in members}
        self._worth_a_try = {
            group: [
                point.candidate for point in (*self._paths[group], *rungs(found[group]))
            ]
            for group in members
        }
        self.score = Scorer(stage, scenes_of(stage, members))
        self.moves: list[Move] = []
        """Those that led to the best choice so far."""

    def run(self, choice: Choice, coarse: Found, least: float) -> tuple[Choice, str]:
        """The choice with this component's groups chosen, and their region.

        Args:
            choice: What was chosen for other components.
            coarse: What coarser controls can do; no component's choice is worse.
            least: What a group has to give.
        """
        carried = choice
        for group in self._members:
            carried = replaced(carried, group, coarse.choice[group])
        known = min((choice, carried), key=self._cost)
        start = self._at(choice, dict.fromkeys(self._members, 0))
        ends = {group: len(path) - 1 for group, path in self._paths.items()}
        fastest = self._at(choice, ends)
        best = min((start, fastest, known), key=self._cost)
        if best == carried:
            self.moves = [m for m in coarse.moves if m.group in self._members]
        region = "balanced"
        if _is_hidden(self.score(start)):
            region = "hidden"
        else:
            if not _is_hidden(self.score(fastest)):
                region = "exposed"
            trail, self.moves = self.moves, []
            descended = self._descend(start)
            if self._cost(descended) <= self._cost(best):
                best = descended
            else:
                self.moves = trail
        if self._policy.look_around:
            for place in dict.fromkeys((best, fastest)):
                trail = self.moves
                self.moves = list(trail) if place == best else []
                ended = self._look_around(place)
                if self._cost(ended) < self._cost(best):
                    best = ended
                else:
                    self.moves = trail
        return self._take_back(best, known, least), region

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
        best, idle, kept = choice, 0, 0
        while idle <= len(self._members) and not _is_hidden(self.score(choice)):
            open_ = [g for g in self._members if places[g] + 1 < len(self._paths[g])]
            if not open_:
                break
            for group in open_:
                if group not in prices:
                    after = self._next(choice, group, places)
                    prices[group] = self._price(choice, after, group)
            group = self._next_group(open_, prices)
            after = self._next(choice, group, places)
            self._record(choice, after)
            choice = after
            places[group] += 1
            # Its own price is another now, and so is that of all who share a window.
            met = {group, *self._met[group]}
            prices = {g: price for g, price in prices.items() if g not in met}
            better = self._cost(choice) < self._cost(best) * (1 - _WORTH)
            if better:
                best, idle, kept = choice, 0, len(self.moves)
            else:
                idle += 1
        del self.moves[kept:]
        return best

    def _next_group(self, open_: Sequence[int], prices: Mapping[int, float]) -> int:
        if self._policy.buys == "first":
            return open_[0]
        choose = min if self._policy.buys == "cheapest" else max
        return choose(open_, key=prices.__getitem__)

    def _next(self, choice: Choice, group: int, places: dict[int, int]) -> Choice:
        return replaced(choice, group, self._paths[group][places[group] + 1].candidate)

    def _price(self, before: Choice, after: Choice, *groups: int) -> float:
        """`H`; without bound where the collectives do not get faster."""
        one, other = self.score(before), self.score(after)
        saved = sum(
            one.own_seconds.get(group, 0.0) - other.own_seconds.get(group, 0.0)
            for group in groups
        )
        added = other.totals.compute_seconds - one.totals.compute_seconds
        if saved <= 0:
            return -float("inf") if added < 0 else float("inf")
        return added / saved

    def _record(self, before: Choice, after: Choice) -> None:
        changed = [g for g in self._members if before[g] != after[g]]
        price = self._price(before, after, *changed)
        seconds = self.score(after).step_seconds
        self.moves += [
            Move(
                group,
                before[group],
                after[group],
                None if abs(price) == float("inf") else price,
                seconds,
            )
            for group in changed
        ]

    def _look_around(self, choice: Choice) -> Choice:
        groups = self._stage.space.groups
        near = {group: NearbyCandidates(groups[group]) for group in self._members}
        # Where nothing has changed since the last look there is nothing new to see.
        news = set(self._members)
        for _ in range(_SWEEPS):
            before = choice
            for group in self._members:
                if group in news:
                    around = near[group].of(choice[group], groups[group].usual[0])
                    options = [
                        replaced(choice, group, candidate)
                        for candidate in (*around, *self._worth_a_try[group])
                    ]
                    choice = self._better(choice, options)
            if self._policy.jointly:
                choice = self._move_two(choice, news)
            changed = [g for g in self._members if choice[g] != before[g]]
            if not changed:
                break
            news = {*changed, *(other for g in changed for other in self._met[g])}
        return choice

    def _better(self, choice: Choice, options: list[Choice]) -> Choice:
        best = min(options, key=self._cost, default=choice)
        if self._cost(best) < self._cost(choice) * (1 - _WORTH):
            self._record(choice, best)
            return best
        return choice

    def _move_two(self, choice: Choice, news: set[int]) -> Choice:
        """Two groups along their paths, each up or down."""
        for one in self._members:
            for other in self._met[one]:
                if other > one and (one in news or other in news):
                    options = [
                        replaced(replaced(choice, one, a), other, b)
                        for a in self._beside(choice, one)
                        for b in self._beside(choice, other)
                    ]
                    choice = self._better(choice, options)
        return choice

    def _beside(self, choice: Choice, group: int) -> list[int]:
        """The next places on a group's path, seen from where it is."""
        path = self._paths[group]
        own = self._seconds[group](choice[group])
        faster = [p for p in path if p.seconds < own]
        slower = [p for p in path if p.seconds > own]
        return [p.candidate for p in (*slower[-1:], *faster[:1])]

    def _take_back(self, choice: Choice, before: Choice, least: float) -> Choice:
        """Leaves alone what gives next to nothing, and never returns worse."""
        for group in self._members:
            alone = replaced(choice, group, 0)
            if self._cost(alone) <= self._cost(choice) + least:
                choice = alone
        return choice if self._cost(choice) < self._cost(before) else before


def _carried(coarse: Found, space: Space) -> Found:
    """A result in the coarser space, expressed in this one."""
    moves = (
        dataclasses.replace(move, group=group, before=before, after=after)
        for move in coarse.moves
        for (group, before), (_, after) in zip(
            space.said(move.group, move.before),
            space.said(move.group, move.after),
            strict=True,
        )
    )
    return Found(space.carried(coarse.choice), coarse.evaluations, tuple(moves))


def _nearest(stage: Stage, group: int) -> list[int]:
    """Groups that share a window with one: those nearest to it in the program."""
    scenes = (stage.scenes[position] for position in stage.scenes_of[group])
    met = {other for scene in scenes for other in scene.groups} - {group}
    return sorted(met, key=lambda other: (abs(other - group), other))[:_PARTNERS]


def _is_hidden(score: Score) -> bool:
    """True if compute hardly ever stands still for a collective."""
    return score.totals.exposed_seconds <= _WORTH * score.step_seconds
