"""Neighbours of an order: a unit, or both ends of a transfer, stand elsewhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from lagom_jax.hlo.collective import Collective
from lagom_jax.order.parameters import SearchParameters
from lagom_jax.order.sequence import Unit, UnitSequence
from lagom_jax.order.splices import Splice, shifts
from lagom_jax.order.terms import Terms

Neighbour: TypeAlias = tuple[Splice, ...]
"""Splices that do not overlap, from front to back."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class AsyncPair:
    """A unit that launches, and those that wait for what it launched."""

    start: int
    waits: tuple[int, ...]
    group: int | None
    """The group of its collective, where a move may change its setting."""


def async_pairs(
    sequence: UnitSequence, terms: Terms, free: frozenset[int]
) -> list[AsyncPair]:
    """Everything that is launched and waited for within a computation.

    Args:
        sequence: The computation.
        terms: The costs of its tasks.
        free: Groups whose setting may change.
    """
    waits: dict[int, list[int]] = {}
    for unit in sequence.units:
        for token in unit.tokens:
            waits.setdefault(token, []).append(unit.number)
    found: list[AsyncPair] = []
    for unit in sequence.units:
        launches = unit.launches
        if not launches:
            continue
        tasks = [launch.task for launch in launches]
        groups = {terms.group(task) for task in tasks if isinstance(task, Collective)}
        group = groups.pop() if len(groups) == 1 else None
        held = {number for launch in launches for number in waits.get(launch.token, ())}
        group = group if group in free else None
        found.append(AsyncPair(unit.number, tuple(sorted(held)), group))
    return found


class Neighbours:
    """The neighbours of an order, which is changed by splices."""

    def __init__(
        self, units: Sequence[Unit], order: Sequence[int], parameters: SearchParameters
    ) -> None:
        """Begins with an order.

        Args:
            units: All units, by number.
            order: A legal order.
            parameters: The places to try.
        """
        self._units, self._parameters = units, parameters
        self._works = [bool(unit.nodes) for unit in units]
        self.order = [*order]
        self.place_of = [0] * len(units)
        """By unit its place in the order."""
        self.take(Splice(0, self.order))

    def take(self, splice: Splice) -> None:
        """Applies a splice."""
        self.order[splice.first : splice.end] = splice.units
        for place, number in enumerate(splice.units, splice.first):
            self.place_of[number] = place

    def merged(self, neighbour: Neighbour) -> Splice:
        """A single splice, from the beginning of the first to the end of the last."""
        if len(neighbour) == 1:
            return neighbour[0]
        first, end = neighbour[0].first, neighbour[-1].end
        units = self.order[first:end]
        for splice in neighbour:
            units[splice.first - first : splice.end - first] = splice.units
        return Splice(first, units)

    def shifted(self, unit: int) -> Iterator[Neighbour]:
        """A unit in other places, nearer ones first."""
        place, reach = self.place_of[unit], self._parameters.reach
        for step in (-1, 1):
            targets = self._targets(place, step, reach)
            for splice in shifts(self._units, self.order, place, targets):
                yield (splice,)

    def stretched(self, pair: AsyncPair) -> Iterator[Neighbour]:
        """A launch earlier and its first wait later, or the other way about."""
        units, order, near = self._units, self.order, self._parameters.near
        start, wait = self.place_of[pair.start], self.place_of[pair.waits[0]]
        for step in (-1, 1):
            begins = [*self._targets(start, step, near)]
            ends = [*self._targets(wait, -step, near)]
            firsts = shifts(units, order, start, begins)
            seconds = [*shifts(units, order, wait, ends)]
            for begin, one in zip(begins, firsts, strict=True):
                for end, other in zip(ends, seconds, strict=True):
                    if begin < end:
                        yield one, other

    def _targets(self, place: int, step: int, reach: int) -> Iterator[int]:
        """Places before or behind one, farther and farther away."""
        order, works, stride = self.order, self._works, self._parameters.stride
        count, due = 0, 1
        target, last = place + step, None
        while 0 <= target < len(order) and count < reach:
            if works[order[target]]:
                count, last = count + 1, target
                if count == due:
                    yield target
                    last, due = None, max(due + 1, int(due * stride))
            target += step
        if last is not None:
            yield last
