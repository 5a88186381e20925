"""The search on one computation: order and settings together, by small moves.

A collective that is set slower takes less from the kernels beside it, but needs more
room; an order found for fast collectives has no such room. So a start or a wait moves
together with the setting of its collective.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

from lagom_jax.hlo.collective import Collective
from lagom_jax.ordering.moves import moved
from lagom_jax.ordering.rehearsal import Rehearsal
from lagom_jax.ordering.sequence import Order, UnitSequence
from lagom_jax.ordering.terms import Terms

# Shares of a computation's time below this are no improvement, but rounding.
_WORTH = 1e-6
# How much farther each place is that is tried, and how many units with something to do
# may lie between.
_STRIDE = 1.6
_REACH = 96


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Flight:
    """What is launched by one unit and waited for by another."""

    start: int
    """The unit that launches."""
    waits: tuple[int, ...]
    """The units that wait."""
    group: int | None
    """The group of its collective, where a move may change its setting."""


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where a search stands."""

    order: Order
    settings: tuple[tuple[int, int], ...]
    """Candidates of the groups that it may change."""
    seconds: float


def flights_of(
    sequence: UnitSequence, terms: Terms, free: frozenset[int]
) -> list[Flight]:
    """What is launched and waited for within a computation.

    Args:
        sequence: The computation.
        terms: What its tasks cost.
        free: Groups whose setting may change.
    """
    waits: dict[int, list[int]] = {}
    for unit in sequence.units:
        for token in unit.tokens:
            waits.setdefault(token, []).append(unit.number)
    found: list[Flight] = []
    for unit in sequence.units:
        launches = unit.launches
        if not launches:
            continue
        tasks = [launch.task for launch in launches]
        groups = {terms.group(task) for task in tasks if isinstance(task, Collective)}
        group = groups.pop() if len(groups) == 1 else None
        held = {number for launch in launches for number in waits.get(launch.token, ())}
        found.append(
            Flight(unit.number, tuple(sorted(held)), group if group in free else None)
        )
    return found


class Descent:
    """Improves the order of one computation until nothing near is better."""

    def __init__(
        self,
        sequence: UnitSequence,
        terms: Terms,
        options: Mapping[int, Sequence[int]],
        *,
        most_bytes: int | None,
        evaluations: int,
    ) -> None:
        """Prepares a search.

        Args:
            sequence: The computation.
            terms: What its tasks cost; left as the result of the search wants it.
            options: For each group that may change the candidates to try.
            most_bytes: What the estimate of live bytes may be at most.
            evaluations: How many orders to replay at most.
        """
        self._sequence, self._terms, self._options = sequence, terms, options
        self._most_bytes, self._budget = most_bytes, evaluations
        self._units = sequence.units
        self._rehearsal = Rehearsal(sequence, terms)
        self._flights = flights_of(sequence, terms, frozenset(options))
        self._works = [bool(unit.nodes) for unit in sequence.units]
        self._launchers: dict[int, list[int]] = {}
        for flight in self._flights:
            if flight.group is not None:
                self._launchers.setdefault(flight.group, []).append(flight.start)

    @property
    def evaluations(self) -> int:
        """Orders that were replayed."""
        return self._rehearsal.evaluations

    def run(self, order: Order) -> Place:
        """The best place found from an order, under the present settings."""
        self._order = order
        self._seconds = self._rehearsal.keep(order)
        improved = True
        while improved and not self._is_over():
            improved = False
            for flight in self._flights:
                for unit in (flight.start, *flight.waits):
                    if not self._is_over():
                        improved |= self._move(unit, flight)
        return self._place()

    def _place(self) -> Place:
        choice = self._terms.choice
        settings = tuple((group, choice[group]) for group in sorted(self._options))
        return Place(self._order, settings, self._seconds)

    def _is_over(self) -> bool:
        return self.evaluations >= self._budget

    def _move(self, unit: int, flight: Flight) -> bool:
        """Tries places for a unit, each with settings of its flight; takes the best."""
        place = self._order.index(unit)
        orders = [self._order]
        orders += [
            moved(self._units, self._order, place, target)
            for target in self._targets(place)
        ]
        return self._best(orders, flight.group)

    def _targets(self, place: int) -> Iterator[int]:
        """Places before and behind one, farther and farther away."""
        order, works = self._order, self._works
        for places in (range(place - 1, -1, -1), range(place + 1, len(order))):
            count, due = 0, 1
            last: int | None = None
            for target in places:
                if works[order[target]]:
                    count += 1
                    last = target
                    if count == due:
                        yield target
                        last, due = None, max(due + 1, int(due * _STRIDE))
                    if count == _REACH:
                        break
            if last is not None:
                yield last

    def _best(self, orders: Iterable[Order], group: int | None) -> bool:
        terms, best = self._terms, self._seconds * (1 - _WORTH)
        here = None if group is None else terms.choice[group]
        candidates: Sequence[int] = (0,)
        if group is not None and here is not None:
            candidates = tuple(dict.fromkeys((here, *self._options[group])))
        found: tuple[Order, int, int] | None = None
        for candidate in candidates:
            if group is not None:
                terms.choose(group, candidate)
            for order in orders:
                if order == self._order and candidate == here:
                    continue
                first, last = self._changed(order, None if candidate == here else group)
                if first > last:
                    continue
                seconds = self._rehearsal.try_(order, first, last, best)
                if seconds < best and self._fits(order):
                    best, found = seconds, (order, candidate, first)
        if group is not None and here is not None:
            terms.choose(group, here if found is None else found[1])
        if found is None:
            return False
        self._order = found[0]
        self._seconds = self._rehearsal.keep(self._order, found[2])
        return True

    def _changed(self, order: Order, group: int | None) -> tuple[int, int]:
        """The first and the last place where an order, or a setting, is another."""
        old = self._order
        first, last = 0, len(order) - 1
        if order is old:
            first, last = len(order), -1
        else:
            while first <= last and order[first] == old[first]:
                first += 1
            while last >= first and order[last] == old[last]:
                last -= 1
            if first > last:
                first, last = len(order), -1
        if group is not None:
            for start in self._launchers.get(group, ()):
                place = order.index(start)
                first, last = min(first, place), max(last, place)
        return first, last

    def _fits(self, order: Order) -> bool:
        limit = self._most_bytes
        return limit is None or self._sequence.live_bytes(order) <= limit
