"""Plans that a job could run instead of the one that was taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from lagom_jax.planner.decide import TimedWay
from lagom_jax.planner.regret import Scored
from lagom_jax.planner.run import Finished
from lagom_jax.settings.space import Choice

MOST: Final = 8
"""Alternatives, beside the program as it is."""


def chosen(finished: Finished, most: int = MOST) -> list[tuple[str, TimedWay]]:
    """The program as it is, the plan that was taken, and others worth measuring.

    Those are other programs that were compiled, each with the settings that were found
    for it, by name; `lagom_jax.planner.settings_around` has other settings. Those come
    first that by a quarter of the models gain most: what most models think is what was
    taken.

    Args:
        finished: What a planner has ended with.
        most: How many, beside the program as it is.
    """
    first, *ways = finished.ways
    taken = next((w for w in ways if _is_taken(w, finished)), first)
    found = {_key(first): (name_of(first), first)}
    found.setdefault(_key(taken), (name_of(taken), taken))
    rest = [*ways, *_out_of_reach(finished)]
    rest.sort(key=lambda way: _best_gain(first.scored, way.scored))
    # Of each program its best settings; those of the plan's own are another matter.
    programs = {way.trial.number: way for way in reversed(rest)}
    others = [way for way in rest if programs[way.trial.number] is way]
    own = taken.trial.number
    others = [way for way in others if way.trial.number != own]
    settings = [way for way in rest if way.trial.number == own]
    for way in (*others[: most - len(settings)], *settings):
        found.setdefault(_key(way), (name_of(way), way))
    return _apart(list(found.values())[: most + 1])


def _apart(named: Sequence[tuple[str, TimedWay]]) -> list[tuple[str, TimedWay]]:
    """With names of which no two are the same."""
    seen = Counter[str]()
    found: list[tuple[str, TimedWay]] = []
    for name, way in named:
        seen[name] += 1
        number = f" ({seen[name]})" if seen[name] > 1 else ""
        found.append((name + number, way))
    return found


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


def name_of(way: TimedWay) -> str:
    """A candidate's name: what was asked of the compiler, and the settings."""
    settings = sum(1 for candidate in way.view.found.choice if candidate)
    order = ", in our order" if way.trial.ordered else ""
    told = f", {settings} settings" if settings else ""
    return f"{way.trial.label} {way.trial.asked.name}{order}{told}"
