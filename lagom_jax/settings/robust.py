"""Settings with the least regret: asked of all models, all groups together.

A search asks the likeliest model alone, and what it finds may suit no other one. So the
settings of those groups of collectives that take the most time are looked at again. Of
the settings near the found one, and of those on the group's path from cheap to fast, a
few models choose a few. All models time these, and choose for all groups together, one
group after the other: the least regret on average, with the worst within a bound. The
model that has the most says what it would choose by itself, and all choose once more:
what a few others name may be far from it, and its regret beside these less than the
truth. Where the step should be behind another by no model, what any model
loses beside it counts more than anything else. First they choose as if no group felt
what the others take, until nothing changes; then each group once more, beside the
others as they have become. What one model loses in one group it may win in another, so
groups that are alike may end with different settings.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Final

from lagom_jax.plan.interval import SAME, Interval, outweighed
from lagom_jax.plan.regret import WORST_REGRET, regrets_beside, regretted
from lagom_jax.settings.frontier import path, points, rungs
from lagom_jax.settings.lagom import Lagom
from lagom_jax.settings.neighbours import NearbyCandidates
from lagom_jax.settings.policy import Found, replaced, scenes_of
from lagom_jax.settings.space import Choice
from lagom_jax.settings.stage import Stage

GROUPS: Final = 8
"""Groups that are looked at: those whose collectives take the most time."""
_WORTH_A_LOOK: Final = 0.01
"""Collectives that take less than this share of the step stay as they were found."""
_EACH: Final = 5
"""Every so many models one makes the first choice."""
_FEW: Final = 3
"""Settings that all models are asked about, beside the best of each protocol."""
_ASKED: Final = 3
"""Models that are asked for their own choice, one after the other."""
_ASKED_ABOVE: Final = WORST_REGRET / 2
"""The regret beyond which they are: beside what such a model would choose by itself, it
is up to twice what it seems."""
_STEPS: Final = 8
"""Of a group's path from cheap to fast, settings that are looked at."""
_SWEEPS: Final = 8
"""Rounds over all groups, at most, while what is known of each alone decides."""
_BEHIND: Final = 100.0
"""Weight of what models lose beside another step, where none should: more than what
any of them has to gain."""


def robust(
    likeliest: Stage,
    members: Sequence[Stage],
    found: Found,
    not_behind: Sequence[float] = (),
) -> Found:
    """A policy's choice, with the settings that all models together would take.

    One that is outweighed beside NCCL's own by what it may cost is not taken.

    Args:
        likeliest: The step under the model that the policy asked.
        members: The same under the others; without any, nothing changes.
        found: The policy's answer.
        not_behind: By each member, seconds of another step that this one should not
            take longer than; without any it is free.
    """
    if not members:
        return found
    score = likeliest.score(found.choice)
    own, least = score.own_seconds, _WORTH_A_LOOK * score.step_seconds
    largest = sorted(own, key=lambda group: (-own[group], group))[:GROUPS]
    groups = [group for group in largest if own[group] > least]
    search = _AllAsked(likeliest, members, found.choice, groups, not_behind)
    choice = search.choice()
    drowned = {
        group: search.gain(replaced(choice, group, found.choice[group]), group)
        for group in groups
        if found.choice[group] and not choice[group]
    }
    kept = [
        move for move in found.moves if choice[move.group] == found.choice[move.group]
    ]
    return dataclasses.replace(
        found, choice=choice, moves=tuple(kept), drowned={**found.drowned, **drowned}
    )


def behind(times: Sequence[float], others: Sequence[float]) -> float:
    """Shares by which a step takes longer than another, added up over models.

    Args:
        times: The step's, by each model.
        others: The other's; without any it is behind none.

    Example:
        >>> behind([2.0, 1.0], [1.0, 2.0]), behind([2.0, 1.0], [])
        (1.0, 0.0)
    """
    pairs = zip(times, others, strict=bool(others))
    return sum((max(0.0, own / other - 1) for own, other in pairs if other), 0.0)


class _AllAsked:
    """One step, whose settings all models are asked about."""

    def __init__(
        self,
        likeliest: Stage,
        members: Sequence[Stage],
        begin: Choice,
        groups: Sequence[int],
        not_behind: Sequence[float],
    ) -> None:
        self._likeliest, self._members, self._begin = likeliest, members, begin
        self._not_behind = not_behind
        self._step = likeliest.step_seconds(begin)
        self._times = [one.step_seconds(begin) for one in members]
        self._scenes = {group: scenes_of(likeliest, (group,)) for group in groups}
        self._alone = {
            group: {
                one: self._seconds(begin, group, one)
                for one in dict.fromkeys((0, begin[group], *self._few(group)))
            }
            for group in groups
        }
        self._least = self._least_times()

    def choice(self) -> Choice:
        """The choice with the least regret, as far as one group at a time leads.

        The model with the most regret says what it would choose by itself, and all
        choose once more.
        """
        choice, asked = self._felt_by_none(self._begin, self._times), set[int]()
        while True:
            times = [one.step_seconds(choice) for one in self._members]
            found = regrets_beside(times, self._least)
            most = max(range(len(found)), key=found.__getitem__)
            if found[most] <= _ASKED_ABOVE or most in asked or len(asked) == _ASKED:
                break
            asked.add(most)
            self._add_own_choice(most)
            choice = self._felt_by_none(choice, times)
        for group in self._alone:
            seconds = functools.partial(self._seconds, choice, group)
            choice, times = self._better(choice, times, group, seconds)
        return choice

    def _felt_by_none(self, choice: Choice, times: Sequence[float]) -> Choice:
        """The same as if no group felt what the others take."""
        for _ in range(_SWEEPS):
            before = choice
            for group, known in self._alone.items():
                choice, times = self._better(choice, times, group, known.__getitem__)
            if choice == before:
                break
        return choice

    def _add_own_choice(self, place: int) -> None:
        """Adds what a model would choose by itself to what all are asked about."""
        member = self._members[place]
        own = Lagom().choose(member).choice
        self._least[place] = min(self._least[place], member.step_seconds(own))
        for group, known in self._alone.items():
            if own[group] not in known:
                known[own[group]] = self._seconds(self._begin, group, own[group])

    def _better(
        self,
        choice: Choice,
        times: Sequence[float],
        group: int,
        seconds: Callable[[int], list[float]],
    ) -> tuple[Choice, list[float]]:
        """The choice with a group's best setting, and its times by each model."""
        now, usual = choice[group], seconds(0)
        rest = [time - part for time, part in zip(times, seconds(now), strict=True)]
        best, least, ended = now, float("inf"), list(times)
        for candidate in self._alone[group]:
            own = seconds(candidate)
            gains = [before - after for before, after in zip(usual, own, strict=True)]
            if candidate and outweighed(gains, self._step):
                continue
            after = [one + part for one, part in zip(rest, own, strict=True)]
            # What is no better is not worth another setting.
            regret = self._regret(after) + SAME * (candidate != now)
            if regret < least:
                best, least, ended = candidate, regret, after
        return replaced(choice, group, best), ended

    def _regret(self, times: Sequence[float]) -> float:
        regret = regretted(regrets_beside(times, self._least))
        return regret + _BEHIND * behind(times, self._not_behind)

    def _least_times(self) -> list[float]:
        """The step by each model with the settings that it would take by itself."""
        least = list(self._times)
        for place, member in enumerate(self._members):
            own = self._begin
            for group, known in self._alone.items():
                fastest = min(known, key=lambda one: known[one][place])
                own = replaced(own, group, fastest)
            least[place] = min(least[place], member.step_seconds(own))
        return least

    def _seconds(
        self, choice: Choice, group: int, candidate: int, step: int = 1
    ) -> list[float]:
        """Of the scenes that a group is in, by each model."""
        changed = replaced(choice, group, candidate)
        return [
            one.step_seconds(changed, self._scenes[group])
            for one in self._members[::step]
        ]

    def _few(self, group: int) -> list[int]:
        """Settings worth asking all models about."""
        members = self._likeliest.space.groups[group]
        found = {
            candidate: self._seconds(self._begin, group, candidate, _EACH)
            for candidate in self._near(group)
        }
        shares = [1.0 / time if time else 0.0 for time in self._times[::_EACH]]

        def mean(candidate: int) -> float:
            return sum(map(operator.mul, shares, found[candidate]))

        def family(candidate: int) -> tuple[str, str]:
            setting = members.setting(0, members.candidates[candidate])
            return setting.algorithm, setting.protocol

        ordered = sorted(found, key=lambda one: (mean(one), one))
        # What models differ about most is which protocol is fast.
        best_of_each = {family(one): one for one in reversed(ordered)}
        return [*ordered[:_FEW], *best_of_each.values()]

    def _near(self, group: int) -> list[int]:
        members, here = self._likeliest.space.groups[group], self._begin[group]
        known = points(self._likeliest, group)
        near = NearbyCandidates(members).of(here, members.usual[0])
        ladder = [
            point.candidate for point in (*path(known, _STEPS), *rungs(known, _STEPS))
        ]
        return list(dict.fromkeys((here, *near, *ladder)))

    def gain(self, choice: Choice, group: int) -> Interval:
        """Seconds of a step that a group's setting gives."""
        scenes = self._scenes[group]
        without = replaced(choice, group, 0)

        def gained(stage: Stage) -> float:
            before = stage.step_seconds(without, scenes)
            return before - stage.step_seconds(choice, scenes)

        return Interval.of(gained(self._likeliest), [*map(gained, self._members)])
