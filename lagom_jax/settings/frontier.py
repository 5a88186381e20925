"""The choices of a group that can be worth it: from cheap to fast.

A choice gives a group's collectives a time `x`, and takes computing time `y` from the
kernels beside them. One with another that is both faster and cheaper can be forgotten.
What is left, ordered, is a path: every step along it buys communication time with
computing time, at the price `H = (y' - y) / (x - x')` of the Lagom paper.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable
from weakref import WeakKeyDictionary

from lagom_jax.cost.loads import KernelLoad
from lagom_jax.cost.rates_of_loads import KernelMix
from lagom_jax.hlo.collective import Collective
from lagom_jax.program.program import Kernel
from lagom_jax.settings.stage import Stage

LONGEST_PATH = 16
RUNGS = 16
# Times closer than this are the same: a path is not for tenths of a percent.
_SAME = 1e-3


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    """A candidate, and what it means if the group has the kernels to itself."""

    candidate: int
    seconds: float
    """Of the group's collectives in a step, alone."""
    taken_seconds: float
    """Computing time lost to them where kernels run beside them all the time."""


def path(found: list[Point], longest: int = LONGEST_PATH) -> tuple[Point, ...]:
    """Those points that no other one beats in both, at most so many.

    Example:
        >>> slow, fast, bad = Point(1, 4.0, 1.0), Point(2, 2.0, 2.0), Point(3, 4.0, 2.0)
        >>> [point.candidate for point in path([bad, fast, slow])]
        [1, 2]
    """
    best: list[Point] = []
    for point in sorted(found, key=_fast_first):
        if not best or point.taken_seconds < best[-1].taken_seconds * (1 - _SAME):
            best.append(point)
    best.reverse()
    while len(best) > longest:
        del best[min(range(1, len(best) - 1), key=lambda i: _missed(best, i))]
    return tuple(best)


def rungs(found: list[Point], most: int = RUNGS) -> tuple[Point, ...]:
    """The cheapest point of each length of time, from fast to slow.

    A path leaves out what is slower and no cheaper. It can be worth it all the same:
    what takes longer takes less of the links beside collectives on other streams, and
    kernels do not lie as evenly along a window as a path supposes.

    Example:
        >>> found = [Point(1, 1.0, 1.0), Point(2, 4.0, 2.0), Point(3, 3.9, 3.0)]
        >>> [point.candidate for point in rungs(found)]
        [1, 2]
    """
    timed = [point for point in found if point.seconds > 0.0]
    if not timed:
        return ()
    least = min(point.seconds for point in timed)
    longest = max(point.seconds for point in timed)
    width = math.log(longest / least) / most or 1.0
    cheapest: dict[int, Point] = {}
    for point in sorted(timed, key=_fast_first):
        rung = min(most - 1, int(math.log(point.seconds / least) / width))
        if rung not in cheapest or point.taken_seconds < cheapest[rung].taken_seconds:
            cheapest[rung] = point
    return tuple(cheapest.values())


def _fast_first(point: Point) -> tuple[float, float, int]:
    return (point.seconds, point.taken_seconds, point.candidate)


def _missed(best: list[Point], middle: int) -> float:
    """The distance of a point below the straight line between its neighbours."""
    before, point, after = best[middle - 1 : middle + 2]
    width = (before.seconds - after.seconds) or 1.0
    share = (before.seconds - point.seconds) / width
    line = before.taken_seconds + share * (after.taken_seconds - before.taken_seconds)
    return line - point.taken_seconds


def points(stage: Stage, group: int) -> list[Point]:
    """The time and footprint of each candidate of a group, by itself.

    Of those with as many channels and as much in flight, which are in the kernels' way
    alike, only the fastest counts. A search and those who doubt it ask for the same.
    """
    known = _points.setdefault(stage, {})
    if group not in known:
        known[group] = _worked_out(stage, group)
    return known[group]


_points: WeakKeyDictionary[Stage, dict[int, list[Point]]] = WeakKeyDictionary()


def _worked_out(stage: Stage, group: int) -> list[Point]:
    asynchronous, rest = _sites(stage, group)
    candidates = range(len(stage.space.groups[group].candidates))
    if not asynchronous:
        seconds = [_seconds(stage, rest, candidate) for candidate in candidates]
        return [Point(candidate, seconds[candidate], 0.0) for candidate in candidates]
    fastest: dict[tuple[tuple[int, int], ...], tuple[float, int]] = {}
    sites = [(site, times) for site, times, _ in asynchronous]
    for candidate in candidates:
        loads = (stage.load(site, candidate) for site, _ in sites)
        footprint = tuple((load.channels, load.chunk_bytes) for load in loads)
        seconds = _seconds(stage, [*sites, *rest], candidate)
        if footprint not in fastest or seconds < fastest[footprint][0]:
            fastest[footprint] = (seconds, candidate)
    return [
        Point(candidate, seconds, _taken(stage, asynchronous, candidate))
        for seconds, candidate in fastest.values()
    ]


def seconds_alone(stage: Stage, group: int) -> Callable[[int], float]:
    """A function from a candidate to the time alone of a group's collectives."""
    beside, alone = _sites(stage, group)
    sites = [*((site, times) for site, times, _ in beside), *alone]
    return lambda candidate: _seconds(stage, sites, candidate)


def _seconds(
    stage: Stage, sites: list[tuple[Collective, int]], candidate: int
) -> float:
    return sum(times * stage.price(site, candidate).seconds for site, times in sites)


def _taken(
    stage: Stage, sites: list[tuple[Collective, int, KernelMix]], candidate: int
) -> float:
    return sum(
        times
        * stage.price(site, candidate).seconds
        * kernels.lost(stage.load(site, candidate))
        for site, times, kernels in sites
    )


def _sites(
    stage: Stage, group: int
) -> tuple[list[tuple[Collective, int, KernelMix]], list[tuple[Collective, int]]]:
    """Sites that overlap with kernels, with the times they run; and the others."""
    beside: list[tuple[Collective, int, KernelMix]] = []
    alone: list[tuple[Collective, int]] = []
    own = frozenset(stage.space.groups[group].sites)
    for position in stage.scenes_of[group]:
        scene = stage.scenes[position]
        kernels: defaultdict[KernelLoad, float] = defaultdict(float)
        for task, executions, _ in scene.program.tasks():
            if isinstance(task, Kernel):
                seconds, load = stage.kernel(task)
                kernels[load] += executions * seconds
        mix = stage.mix(kernels)
        for task, executions, sync in scene.program.tasks():
            if isinstance(task, Collective) and task in own:
                times = scene.times * executions
                if sync or not kernels:
                    alone.append((task, times))
                else:
                    beside.append((task, times, mix))
    return beside, alone
