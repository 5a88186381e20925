"""Settings with the least expected regret: asked of all models, group by group.

A search asks the likeliest model alone, and what it finds may suit no other one. So the
settings of those groups of collectives that take the most time are looked at again: of
the settings near the found one, and of those on the group's path from cheap to fast,
a few models choose the best few, and all of them the best. The least mean of steps,
each over what the model says of the found choice, is the least expected regret, since
what the best choice takes by a model does not depend on the choice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

from lagom_jax.plan.interval import SAME, Interval, outweighed
from lagom_jax.settings.frontier import path, points, rungs
from lagom_jax.settings.neighbours import NearbyCandidates
from lagom_jax.settings.policy import Found, replaced, scenes_of
from lagom_jax.settings.space import Choice
from lagom_jax.settings.stage import Stage

GROUPS: Final = 8
"""Groups that are looked at: those whose collectives take the most time."""
_WORTH_A_LOOK: Final = 1e-3
"""Collectives that take less than this share of the step stay as they were found."""
_EACH: Final = 4
"""Every so many models one makes the first choice."""
_FEW: Final = 4
"""Settings that all models are asked about."""


def robust(likeliest: Stage, members: Sequence[Stage], found: Found) -> Found:
    """A policy's choice, with the settings that all models together would take.

    One whose loss beside NCCL's own, by all but one model in twenty, may be larger than
    its gain on average is not taken.

    Args:
        likeliest: The step under the model that the policy asked.
        members: The same under the others; without any, nothing changes.
        found: The policy's answer.
    """
    if not members:
        return found
    search = _AllAsked(likeliest, members, found.choice)
    score = likeliest.score(found.choice)
    own, least = score.own_seconds, _WORTH_A_LOOK * score.step_seconds
    largest = sorted(own, key=lambda group: (-own[group], group))[:GROUPS]
    choice, drowned = found.choice, dict[int, Interval]()
    for group in largest:
        if own[group] <= least:
            break
        best = search.best(choice, group)
        if choice[group] and not best:
            drowned[group] = search.gain(choice, group)
        choice = replaced(choice, group, best)
    kept = [
        move for move in found.moves if choice[move.group] == found.choice[move.group]
    ]
    return dataclasses.replace(
        found, choice=choice, moves=tuple(kept), drowned={**found.drowned, **drowned}
    )


class _AllAsked:
    """One step, whose settings all models are asked about."""

    def __init__(
        self, likeliest: Stage, members: Sequence[Stage], choice: Choice
    ) -> None:
        self._likeliest, self._members = likeliest, members
        steps = [one.score(choice).step_seconds for one in members]
        self._weights = [1.0 / step if step else 0.0 for step in steps]
        self._step = likeliest.score(choice).step_seconds

    def best(self, choice: Choice, group: int) -> int:
        """The candidate of a group to take; 0 where none is worth it."""
        scenes = scenes_of(self._likeliest, (group,))

        def seconds(candidate: int, step: int = 1) -> list[float]:
            changed = replaced(choice, group, candidate)
            return [
                one.score(changed, scenes).step_seconds for one in self._members[::step]
            ]

        def mean(by_model: Sequence[float], step: int = 1) -> float:
            weighed = zip(self._weights[::step], by_model, strict=True)
            return sum(weight * own for weight, own in weighed) / len(by_model)

        near = self._near(choice, group)
        few = {one: mean(seconds(one, _EACH), _EACH) for one in near}
        usual, left = seconds(0), sorted(few, key=lambda one: (few[one], one))[:_FEW]
        best, least = 0, mean(usual)
        for candidate in dict.fromkeys((choice[group], *left)):
            own = seconds(candidate)
            gains = [before - after for before, after in zip(usual, own, strict=True)]
            if candidate and outweighed(gains, self._step):
                continue
            # What is no better is not worth another setting.
            if mean(own) < least - SAME * (candidate != choice[group]):
                best, least = candidate, mean(own)
        return best

    def _near(self, choice: Choice, group: int) -> list[int]:
        members = self._likeliest.space.groups[group]
        known = points(self._likeliest, group)
        near = NearbyCandidates(members).of(choice[group], members.usual[0])
        ladder = [point.candidate for point in (*path(known), *rungs(known))]
        return list(dict.fromkeys((*near, *ladder)))

    def gain(self, choice: Choice, group: int) -> Interval:
        """Seconds of a step that a group's setting gives."""
        scenes = scenes_of(self._likeliest, (group,))
        without = replaced(choice, group, 0)

        def gained(stage: Stage) -> float:
            before = stage.score(without, scenes).step_seconds
            return before - stage.score(choice, scenes).step_seconds

        return Interval.of(gained(self._likeliest), [*map(gained, self._members)])
