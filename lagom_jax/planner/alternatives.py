"""Plans that a job could run instead of the one that was taken."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Final

from lagom_jax.plan import Plan
from lagom_jax.planner.decide import TimedWay
from lagom_jax.planner.regret import Scored
from lagom_jax.planner.run import Finished
from lagom_jax.settings.frontier import path, points
from lagom_jax.settings.policy import Found, replaced
from lagom_jax.settings.space import Choice

MOST: Final = 8
"""Alternatives, beside the program as it is."""
_GROUPS: Final = 3
"""Groups of collectives whose settings are varied: those that take most time."""


@dataclasses.dataclass(frozen=True, slots=True)
class Alternative:
    """A plan, and its step by all models."""

    name: str
    plan: Plan
    seconds: float
    by_model: tuple[float, ...]


def alternatives(finished: Finished, most: int = MOST) -> tuple[Alternative, ...]:
    """The program as it is, the plan that was taken, and others worth measuring.

    Args:
        finished: The end of a planner's run.
        most: How many, beside the program as it is.
    """
    return tuple(
        Alternative(
            _name(way),
            finished.plan_of(way),
            way.scored.seconds,
            way.scored.by_model,
        )
        for way in worth_measuring(finished, most)
    )


def worth_measuring(finished: Finished, most: int = MOST) -> tuple[TimedWay, ...]:
    """The same, not yet plans.

    They are the candidates that were decided among, and the taken one with another
    setting for one of the groups that matter most. A few models of twenty that find one
    of them the fastest are reason enough to keep it.

    Args:
        finished: The end of a planner's run.
        most: How many, beside the program as it is.
    """
    first, *ways = finished.ways
    taken = next((w for w in ways if _is_taken(w, finished)), first)
    seen = {_key(first), _key(taken)}
    others: list[TimedWay] = []
    for way in (*ways, *_other_settings(taken, finished)):
        if _key(way) not in seen:
            seen.add(_key(way))
            others.append(way)
    others.sort(key=lambda way: _best_gain(first.scored, way.scored))
    found = [first, *([taken] if taken is not first else []), *others]
    return tuple(found[: most + 1])


def _is_taken(way: TimedWay, finished: Finished) -> bool:
    view = finished.taken.view
    same = way.trial.number == finished.taken.number and view is not None
    return same and view is not None and way.view.found.choice == view.found.choice


def _key(way: TimedWay) -> tuple[int, str, Choice]:
    return way.trial.number, way.view.policy, way.view.found.choice


def _best_gain(first: Scored, scored: Scored) -> float:
    """A low quantile of the ratio to the step as it is: by the models that like it."""
    ratios = [a / b for a, b in zip(scored.by_model, first.by_model, strict=True)]
    return sorted(ratios)[len(ratios) // 4] if ratios else scored.seconds


def _other_settings(way: TimedWay, finished: Finished) -> Iterator[TimedWay]:
    """The same program with one group's setting changed by a step of its path."""
    stage, choice = way.view.stage, way.view.found.choice
    if not choice:
        return
    doubt = finished.judge.doubt(stage, way.view.policy)
    own = stage.score(choice).own_seconds
    matter = sorted(range(len(choice)), key=lambda group: -own.get(group, 0.0))
    for group in matter[:_GROUPS]:
        steps = [point.candidate for point in path(points(stage, group))]
        for candidate in _beside(steps, choice[group]):
            changed = replaced(choice, group, candidate)
            scored = Scored(
                stage.score(changed).step_seconds,
                doubt.step_seconds(changed),
                way.scored.parts + 1,
            )
            view = finished.judge.restated(way.view, Found(changed, 0))
            yield TimedWay(way.trial, view, scored)


def _beside(steps: Sequence[int], chosen: int) -> list[int]:
    """The settings next to one on the path from small to fast, and NCCL's own."""
    place = steps.index(chosen) if chosen in steps else 0
    near = [*steps[max(0, place - 1) : place], *steps[place + 1 : place + 2]]
    return [one for one in dict.fromkeys((0, *near)) if one != chosen]


def _name(way: TimedWay) -> str:
    settings = sum(1 for candidate in way.view.found.choice if candidate)
    order = ", in our order" if way.trial.ordered else ""
    told = f", {settings} settings" if settings else ""
    return f"{way.trial.label} {way.trial.asked.name}{order}{told}"
