"""Settings of collectives that are worth a try while an order is searched for."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from lagom_jax.cost.loads import CollectiveLoad
from lagom_jax.program.program import Kernel
from lagom_jax.settings.frontier import Point, path
from lagom_jax.settings.space import Group
from lagom_jax.settings.stage import Stage

_LONGEST = 8
# A setting that takes so many times as long as the fastest never finds the room.
_SLOWEST = 8.0
_LARGEST_KERNELS = 3


def paths(stage: Stage) -> tuple[tuple[Point, ...], ...]:
    """For each group its candidates from cheap to fast, beside large matmuls.

    What a collective takes of kernels that memory limits is its bytes, whatever its
    setting; what it takes of those that arithmetic limits is for the setting to say.
    """
    kernels = {
        task
        for scene in stage.scenes
        for task, _, _ in scene.program.tasks()
        if isinstance(task, Kernel)
    }
    timed = sorted(
        ((stage.kernel(k), k.name) for k in kernels),
        key=lambda found: (-found[0][0], found[1]),
    )
    bound = [load for (_, load), _ in timed if load.tiles]
    loads = (bound or [load for (_, load), _ in timed])[:_LARGEST_KERNELS]

    lost: dict[CollectiveLoad, float] = {}
    """By load of a collective: shares of its time that kernels lose, summed."""

    def taken(group: Group, candidate: int) -> float:
        total = 0.0
        for site in group.sites:
            beside = stage.load(site, candidate)
            share = lost.get(beside)
            if share is None:
                share = sum(1.0 - 1.0 / stage.slowdown(one, beside) for one in loads)
                lost[beside] = share
            seconds = stage.price(site, candidate).seconds
            total += seconds * share / max(1, len(loads))
        return total

    found: list[tuple[Point, ...]] = []
    for group in stage.space.groups:
        points: list[Point] = []
        for candidate in range(len(group.candidates)):
            seconds = sum(stage.price(site, candidate).seconds for site in group.sites)
            points.append(Point(candidate, seconds, 0.0))
        fastest = min(point.seconds for point in points)
        points = [
            dataclasses.replace(point, taken_seconds=taken(group, point.candidate))
            for point in points
            if point.seconds <= _SLOWEST * fastest + 1e-4
        ]
        found.append(path(points, _LONGEST))
    return tuple(found)


def paced(found: Sequence[Point], pace: float) -> int:
    """The cheapest candidate that takes at most so many times the fastest's time."""
    fastest = min(point.seconds for point in found)
    within = [point for point in found if point.seconds <= pace * fastest]
    return min(within, key=lambda point: point.taken_seconds).candidate
