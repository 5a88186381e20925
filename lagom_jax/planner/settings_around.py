"""Settings one step away from those of a plan, with what each step buys and costs.

The steps of the paper's rounds: every group of collectives has a path from small to
fast (`lagom_jax.settings.frontier`), and a step along it buys time of the collectives
with computing time. A job that measures takes them one at a time, and asks again from
where it stands.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Final

from lagom_jax.planner.alternatives import name_of
from lagom_jax.planner.decide import TimedWay
from lagom_jax.planner.regret import Scored
from lagom_jax.planner.run import Finished
from lagom_jax.settings.doubt import Doubt
from lagom_jax.settings.frontier import path, points, seconds_alone
from lagom_jax.settings.policy import Found, replaced
from lagom_jax.settings.space import Choice
from lagom_jax.settings.stage import Score

GROUPS: Final = 4
"""Groups of collectives whose settings are varied: those that take most time."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class SettingStep:
    """The same program with other settings, and what the difference buys."""

    name: str
    way: TimedWay
    saved_seconds: float
    """By which the collectives of a step become shorter; negative where slower."""
    added_seconds: float
    """By which its kernels become longer, likewise."""


def settings_around(
    finished: Finished, way: TimedWay, *, start: bool
) -> list[SettingStep]:
    """Steps from a candidate's settings: for each group up, down, and back to NCCL's.

    Args:
        finished: What a planner has ended with.
        way: The candidate.
        start: Adds the start of the paper's rounds, all groups as small as can be.
    """
    around = _Around(finished, way)
    return list(around.steps(start=start))


class _Around:
    def __init__(self, finished: Finished, way: TimedWay) -> None:
        self._finished, self._way = finished, way
        self._stage, self._choice = way.view.stage, way.view.found.choice
        self._doubt: Doubt = finished.judge.doubt(self._stage, way.view.policy)
        self._score = self._stage.score(self._choice)

    def steps(self, *, start: bool) -> Iterator[SettingStep]:
        own = self._score.own_seconds
        by_time = sorted(own, key=lambda group: -own[group])
        known = {self._choice}
        paths = {group: path(points(self._stage, group)) for group in by_time[:GROUPS]}
        if start:
            smallest = self._choice
            for group, found in paths.items():
                smallest = replaced(smallest, group, found[0].candidate)
            if smallest not in known:
                known.add(smallest)
                yield self._step(smallest, f"{name_of(self._way)}; all small")
        for group, found in paths.items():
            for candidate in self._beside(group, [one.candidate for one in found]):
                changed = replaced(self._choice, group, candidate)
                if changed not in known:
                    known.add(changed)
                    yield self._step(changed, self._named(group, candidate))

    def _beside(self, group: int, steps: Sequence[int]) -> list[int]:
        """The next larger and smaller settings of a group, and NCCL's own."""
        alone = seconds_alone(self._stage, group)
        here = alone(self._choice[group])
        larger = [one for one in steps if alone(one) < here]
        smaller = [one for one in steps if alone(one) > here]
        return [*larger[:1], *smaller[-1:], 0]

    def _named(self, group: int, candidate: int) -> str:
        calls = self._stage.space.groups[group]
        told = calls.candidates[candidate] if candidate else "as NCCL has it"
        return f"{name_of(self._way)}; {calls.name}: {told}"

    def _step(self, choice: Choice, name: str) -> SettingStep:
        score = self._stage.score(choice)
        parts = self._way.scored.parts + 1
        scored = Scored(score.step_seconds, self._doubt.step_seconds(choice), parts)
        view = self._finished.judge.restated(self._way.view, Found(choice, 0))
        return SettingStep(
            name,
            TimedWay(self._way.trial, view, scored),
            _communication(self._score) - _communication(score),
            score.totals.compute_seconds - self._score.totals.compute_seconds,
        )


def _communication(score: Score) -> float:
    return sum(score.own_seconds.values())
