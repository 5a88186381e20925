"""The ideas to try next: all at once, one more, or one less."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from lagom_jax.options import Idea
from lagom_jax.options.bound import NOT_A_LINK
from lagom_jax.planner.comparison import BETTER
from lagom_jax.planner.judge import View
from lagom_jax.planner.trial import Asked, Trial
from lagom_jax.settings.floor import Fastest
from xla_flags import known

_MENTIONED: Final = 4
"""Requests that are listed although nobody tried them."""


def together(ideas: Sequence[Idea], begin: Asked) -> list[Asked]:
    """All ideas at once, and all about loops at once, with what is there already.

    The more promising rules the other out.
    """
    first = [idea for idea in reversed(ideas) if idea.first]
    found: list[Asked] = []
    for chosen in (first, [idea for idea in first if idea.loops_only]):
        together = begin
        for idea in chosen:
            # What keeps a step as it is written is not given up for others at once.
            if not any(idea.rules_out(other) for other in begin.ideas):
                together = together.with_(idea)
        if together.ideas != begin.ideas:
            found.append(together)
    return found


def neighbours(
    best: Trial,
    first: Trial,
    ideas: Sequence[Idea],
    without_effect: Collection[object],
) -> list[Asked]:
    """One idea more or one less, those first that could give the most.

    Where one link carries collectives for most of the step, waiting less for them gives
    no more than the rest of it. Last come those without an idea that changed nothing
    where it was tried.
    """
    options = best.asked.options
    assert best.view is not None
    assert first.view is not None
    room = _room(best)
    found = [
        (
            *_worth(idea.most_seconds, None if idea.carries_less else room),
            best.asked.with_(idea, best.label),
        )
        for idea in ideas
        if any(options.get(name) != value for name, value in idea.options.items())
    ]
    # What an idea may have brought that is not wanted: work, and waiting for its kind.
    work = _alone(best.view) - _alone(first.view)
    least = BETTER * best.seconds
    for idea in best.asked.ideas:
        kinds = {kind for name in idea.options for kind in known()[name].kinds}
        waiting = sum(
            figures.exposed_seconds
            for site, figures in best.view.timeline.collectives().items()
            if site.kind in kinds and site.operand_count > 1
        )
        worth = max(0.0, work) + waiting
        if idea.key in without_effect:
            worth = max(worth, least)
        found.append((*_worth(worth, room), best.asked.without(idea, best.label)))
    found.sort(key=lambda one: (-one[0], -one[1]))
    return [asked for _, most, asked in found if most >= least]


def idle(trials: Iterable[Trial]) -> set[object]:
    """Keys of ideas that changed nothing when they were added to some others."""
    digests = {
        trial.asked.keys: trial.view.structure.digest
        for trial in trials
        if trial.view is not None and trial.asked.costs is None
    }
    return {
        key
        for keys, digest in digests.items()
        for key in keys
        if digests.get(keys - {key}) == digest
    }


def key_of(asked: Asked) -> frozenset[str]:
    """Options by which two candidates are the same."""
    return frozenset(f"{name}={value!r}" for name, value in asked.options.items())


def _worth(most: float, room: float | None) -> tuple[float, float]:
    """Seconds to gain at most: within the room that there is, if any, and at all."""
    return (most if room is None else min(most, room)), most


def _room(best: Trial) -> float | None:
    """Seconds of a step in which the link that carries most is idle.

    Collectives of one link come one after another, each at its fastest. None where
    kernels take longer: they, not links, are what a step then waits for.
    """
    assert best.view is not None
    fastest = Fastest(best.view.stage)
    links: defaultdict[str, float] = defaultdict(float)
    for site, times, _ in best.view.program.collectives():
        price = fastest.collective(site)
        if price.bound != NOT_A_LINK:
            links[price.bound] += times * price.seconds
    longest = max(links.values(), default=0.0)
    if longest <= _alone(best.view):
        return None
    return max(0.0, best.seconds - longest)


def _alone(view: View) -> float:
    totals = view.timeline.totals
    return totals.compute_seconds - totals.contention_seconds


def untried(queue: Iterable[Asked], trials: Iterable[Trial]) -> list[Asked]:
    """The first of a queue that nobody tried, each once."""
    tried = {key_of(trial.asked) for trial in trials}
    left = {key_of(asked): asked for asked in queue if key_of(asked) not in tried}
    return [*left.values()][:_MENTIONED]
