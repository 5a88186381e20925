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
_SETTINGS: Final = 4
"""Those that differ from the taken one in a setting alone."""
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
        finished: What a planner has ended with.
        most: How many, beside the program as it is.
    """
    return tuple(
        Alternative(
            name, finished.plan_of(way), way.scored.seconds, way.scored.by_model
        )
        for name, way in chosen(finished, most)
    )


def chosen(finished: Finished, most: int = MOST) -> list[tuple[str, TimedWay]]:
    """The same before plans are made of them, by name.

    Those are the taken one, other programs that were compiled, and the taken one with
    another setting for one of the groups that matter most. Those come first that by a
    quarter of the models gain most: what most models think is what was taken.

    Args:
        finished: What a planner has ended with.
        most: How many, beside the program as it is.
    """
    first, *ways = finished.ways
    taken = next((w for w in ways if _is_taken(w, finished)), first)
    found = {_key(first): (_name(first), first)}
    found.setdefault(_key(taken), (_name(taken), taken))
    rest = [*ways, *_out_of_reach(finished)]
    rest.sort(key=lambda way: _best_gain(first.scored, way.scored))
    # Of each program its best settings; those of the plan's own are another matter.
    programs = {way.trial.number: way for way in reversed(rest)}
    others = [way for way in rest if programs[way.trial.number] is way]
    own = taken.trial.number
    others = [way for way in others if way.trial.number != own]
    settings = [(_name(way), way) for way in rest if way.trial.number == own]
    settings += sorted(
        _other_settings(taken, finished),
        key=lambda named: _best_gain(first.scored, named[1].scored),
    )
    named = [(_name(way), way) for way in others]
    # Settings cost no program to be built, and are the smaller part of what may be won.
    for name, way in (*named[: most - _SETTINGS], *settings):
        found.setdefault(_key(way), (name, way))
    return list(found.values())[: most + 1]


def _out_of_reach(finished: Finished) -> Iterator[TimedWay]:
    """Programs that the likeliest model finds too slow to be decided among."""
    known = {way.trial.number for way in finished.ways}
    for trial in finished.trials:
        view = trial.view
        if view is None or not trial.usable or trial.number in known:
            continue
        if trial.status == "no effect":
            # It is the same program as another.
            continue
        choice = view.found.choice
        scored = Scored(
            view.tuned_seconds,
            finished.judge.doubt(view.stage, view.policy).step_seconds(choice),
            0,
        )
        yield TimedWay(trial, view, scored)


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


def _other_settings(
    way: TimedWay, finished: Finished
) -> Iterator[tuple[str, TimedWay]]:
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
            calls = stage.space.groups[group]
            told = calls.candidates[candidate] if candidate else "as NCCL has it"
            name = f"{_name(way)}; {calls.name}: {told}"
            yield name, TimedWay(way.trial, view, scored)


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
