"""A choice of settings under all models of an ensemble: its times, and what is left.

A setting stays if what it gives on average weighs more than the losses in it. Otherwise
NCCL's own choice stays, or another setting takes its place that is worth it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from lagom_jax.cost.model import CostModel
from lagom_jax.cost.prices import Prices
from lagom_jax.plan.interval import (
    SAME,
    Interval,
    StepIntervals,
    Uncertainty,
    drowns,
    outweighed,
)
from lagom_jax.plan.regret import regrets, regretted
from lagom_jax.program.program import Program
from lagom_jax.settings.policy import Found, replaced, scenes_of
from lagom_jax.settings.robust import behind, robust
from lagom_jax.settings.space import Choice, Space
from lagom_jax.settings.stage import Stage

Unsure: TypeAlias = Callable[[Sequence[float], float], bool]
"""True for a gain that is not sure, of its seconds by each model and the step's."""


class EnsembleMember(NamedTuple):
    """A model of an ensemble, with what the user's own measurements make of it."""

    model: CostModel
    correct: Callable[[Prices], Prices]


def uncorrected(models: Iterable[CostModel]) -> tuple[EnsembleMember, ...]:
    """Models whose prices nobody has corrected.

    Example:
        >>> uncorrected([])
        ()
    """
    return tuple(EnsembleMember(model, lambda prices: prices) for model in models)


class Doubt:
    """A step under the models of an ensemble.

    Example:
        >>> from lagom_jax.cluster import Cluster
        >>> from lagom_jax.cost.ensemble import Ensemble
        >>> from lagom_jax.settings.controls import named
        >>> from lagom_jax.settings.space import space_of
        >>> h100, empty = Cluster.parse("h100:1x8"), Program("p", (), 8)
        >>> models = Ensemble.of(h100, members=3)
        >>> stage = Stage(
        ...     empty, space_of(empty, h100, named("tuner")), models.likeliest)
        >>> Doubt(stage, uncorrected(models.members)).step_seconds(())
        (0.0, 0.0, 0.0)
    """

    def __init__(self, stage: Stage, members: Iterable[EnsembleMember]) -> None:
        """Sets the step up under each model.

        Args:
            stage: The step under the likeliest.
            members: The others.
        """
        self._stage = stage
        self.stages: Final = [
            stage.under(member.model, member.correct) for member in members
        ]

    def step_seconds(self, choice: Choice) -> tuple[float, ...]:
        """The step's time under a choice, by each model."""
        return tuple(stage.step_seconds(choice) for stage in self.stages)

    def uncertainty(self, choice: Choice) -> Uncertainty:
        """The intervals of the step under a choice, and with all left to NCCL."""
        untouched = self._stage.untouched
        return Uncertainty.of(
            self._stage.step_seconds(untouched),
            self._stage.step_seconds(choice),
            self.step_seconds(untouched),
            self.step_seconds(choice),
        )

    def decided(
        self, found: Found, *, alone: bool = True, not_behind: Sequence[float] = ()
    ) -> Found:
        """A policy's choice, or what all models make of it where that costs less.

        Args:
            found: The policy's.
            alone: Settings are all that is changed: together they must not drown.
            not_behind: By each model, seconds of another step that this one should not
                take longer than, if there is such a one.
        """
        if not_behind:
            asked = robust(self._stage, self.stages, found, not_behind)
            ways = [found, asked, self.settled(asked)]
            lost = [behind(self.step_seconds(way.choice), not_behind) for way in ways]
            least = [w for w, own in zip(ways, lost, strict=True) if own <= min(lost)]
            return self._cheapest(least)
        ways = self._ways(found, outweighed)
        if alone and self._drowns(self._cheapest(ways).choice):
            # Each is worth it, and all together are not sure to be.
            ways = self._ways(found, drowns)
        return self._cheapest(ways)

    def _ways(self, found: Found, unsure: Unsure) -> list[Found]:
        """The rest of a policy's choice, and the settings all models make of it."""
        settled = self.settled(found, unsure)
        asked = robust(self._stage, self.stages, settled)
        return [settled, self.settled(asked, unsure)]

    def _cheapest(self, ways: Sequence[Found]) -> Found:
        """The one with the least regret; the first of those that are alike."""
        found = [*map(regretted, regrets([self.step_seconds(w.choice) for w in ways]))]
        least = min(found) + SAME
        return next(way for way, own in zip(ways, found, strict=True) if own <= least)

    def _drowns(self, choice: Choice) -> bool:
        """True if what all settings give together drowns."""
        usual = self._stage.untouched
        gains = [
            before - after
            for before, after in zip(
                self.step_seconds(usual), self.step_seconds(choice), strict=True
            )
        ]
        return drowns(gains, self._stage.step_seconds(usual))

    def settled(self, found: Found, unsure: Unsure = outweighed) -> Found:
        """A policy's choice, without the settings whose gain is not sure enough.

        Args:
            found: The policy's.
            unsure: Whether a gain is not, of its seconds by each model and the step's.
        """
        if not self.stages:
            return found
        choice, drowned = found.choice, dict[int, Interval]()
        step = self._stage.step_seconds(choice)
        gains = {
            group: self._gains(choice, group)[0]
            for group, candidate in enumerate(choice)
            if candidate
        }
        # What gives least goes first: others may be worth more without it.
        for group in sorted(gains, key=gains.__getitem__):
            gain, by_model = self._gains(choice, group)
            if unsure(by_model, step):
                choice = replaced(choice, group, 0)
                drowned[group] = Interval.of(gain, by_model)
        moves = tuple(move for move in found.moves if choice[move.group])
        return dataclasses.replace(
            found, choice=choice, moves=moves, drowned={**found.drowned, **drowned}
        )

    def _gains(self, choice: Choice, group: int) -> tuple[float, list[float]]:
        """Seconds of a step that a group's setting gives: likeliest, and by model."""
        scenes = scenes_of(self._stage, (group,))
        without = replaced(choice, group, 0)

        def gain(stage: Stage) -> float:
            before = stage.step_seconds(without, scenes)
            return before - stage.step_seconds(choice, scenes)

        return gain(self._stage), [gain(stage) for stage in self.stages]


def step_intervals(
    program: Program, likeliest: EnsembleMember, members: Sequence[EnsembleMember]
) -> StepIntervals:
    """A step's time and its parts with their intervals, settings being what they are.

    Args:
        program: The step.
        likeliest: The likeliest model.
        members: The others.

    Example:
        >>> from lagom_jax.cluster import Cluster
        >>> model = CostModel.of(Cluster.parse("h100:1x8"))
        >>> (only,) = uncorrected([model])
        >>> step_intervals(Program("p", (), 8), only, [only]).step
        Interval(low=0.0, expected=0.0, high=0.0)
    """
    stage = Stage(program, Space((), ()), likeliest.model, likeliest.correct)
    own = stage.score(()).totals
    others = [one.score(()).totals for one in Doubt(stage, members).stages]
    return StepIntervals(
        Interval.of(own.step_seconds, [one.step_seconds for one in others]),
        Interval.of(own.exposed_seconds, [one.exposed_seconds for one in others]),
        Interval.of(own.contention_seconds, [one.contention_seconds for one in others]),
    )
