"""Common types of all policies: the question, the answer, and a search's evaluator."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

from lagom_jax.plan.interval import Interval
from lagom_jax.settings.space import Choice
from lagom_jax.settings.stage import Score, Stage

Objective: TypeAlias = Callable[[Score, int], float]
"""The objective to minimise, of a score and the group that is being changed."""


def step_time(score: Score, _: int) -> float:
    """The step's own time: what Lagom looks at."""
    return score.step_seconds


def own_time(score: Score, group: int) -> float:
    """The collectives' own time, slowed as they were: what AutoCCL looks at."""
    return score.own_seconds.get(group, 0.0)


@dataclasses.dataclass(frozen=True, slots=True)
class Move:
    """A change that a policy accepted."""

    group: int
    before: int
    after: int
    """Positions of candidates."""
    price: float | None
    """`H`, the computing time that each second of communication cost; None where
    communication was not made faster."""
    step_seconds: float
    """Of the windows in question, after it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """The result of a policy."""

    choice: Choice
    evaluations: int
    """Choices that were scored."""
    moves: tuple[Move, ...] = ()
    regions: Mapping[int, str] = dataclasses.field(default_factory=dict[int, str])
    """By group: `hidden`, `exposed` or `balanced`; Lagom's only."""
    drowned: Mapping[int, Interval] = dataclasses.field(
        default_factory=dict[int, Interval]
    )
    """By group: seconds of a step that a setting gives by most models, where that is
    not certain to be anything, so that the group was left alone."""


class Policy(Protocol):
    """Chooses candidates for all groups of a program."""

    @property
    def name(self) -> str:
        """The policy's name."""
        ...

    def choose(self, stage: Stage) -> Found:
        """The choice, and how it was found."""
        ...


class Default:
    """Leaves everything to NCCL."""

    name = "nccl"

    def choose(self, stage: Stage) -> Found:
        """Nothing is changed."""
        return Found(stage.untouched, 0)


class Scorer:
    """Scores choices within some scenes, each once, and counts."""

    def __init__(self, stage: Stage, scenes: tuple[int, ...]) -> None:
        self._stage = stage
        self._scenes = scenes
        self._known: dict[Choice, Score] = {}

    @property
    def evaluations(self) -> int:
        """Different choices that were scored."""
        return len(self._known)

    def __call__(self, choice: Choice) -> Score:
        """The score of a choice."""
        known = self._known.get(choice)
        if known is None:
            known = self._known[choice] = self._stage.score(choice, self._scenes)
        return known


def scenes_of(stage: Stage, groups: tuple[int, ...]) -> tuple[int, ...]:
    """The scenes that any of the groups is in."""
    return tuple(sorted({s for group in groups for s in stage.scenes_of[group]}))


def replaced(choice: Choice, group: int, candidate: int) -> Choice:
    """The same choice with another candidate for one group.

    Example:
        >>> replaced((0, 0, 0), 1, 7)
        (0, 7, 0)
    """
    return (*choice[:group], candidate, *choice[group + 1 :])
