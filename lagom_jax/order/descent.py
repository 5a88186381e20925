"""Descent on one computation: order and settings together, by small moves.

A collective that is set slower takes less from the kernels beside it, but needs more
room; an order found for fast collectives has no such room. So a start or a wait moves
together with the setting of its collective. A move costs what it changes: a splice of
the order, and a replay until the streams are again as they were.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable, Mapping, Sequence

from lagom_jax.order.constraints import Constraints
from lagom_jax.order.eager import eager
from lagom_jax.order.incremental import IncrementalReplay
from lagom_jax.order.neighbours import (
    AsyncPair,
    Neighbour,
    Neighbours,
    async_pairs,
)
from lagom_jax.order.parameters import PARAMETERS, SearchParameters
from lagom_jax.order.robust_replay import RobustReplay
from lagom_jax.order.sequence import Order, UnitSequence
from lagom_jax.order.splices import Splice
from lagom_jax.order.terms import Terms
from lagom_jax.program.program import Run

_NONE: frozenset[int] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class Arrangement:
    """An order of a computation, with settings."""

    order: Order
    settings: tuple[tuple[int, int], ...]
    """Candidates of the groups that the search may change."""
    seconds: float


@dataclasses.dataclass(slots=True)
class _Unvisited:
    """Everything near which something changed since it was looked at."""

    shifts: set[int] = dataclasses.field(default_factory=set[int])
    """Pairs, whose starts and waits may move."""
    settings: set[int] = dataclasses.field(default_factory=set[int])
    """Groups."""
    kernels: set[int] = dataclasses.field(default_factory=set[int])
    """Units."""
    both: set[int] = dataclasses.field(default_factory=set[int])
    """Pairs that may move together with their setting."""
    stretches: set[int] = dataclasses.field(default_factory=set[int])
    """Pairs, whose start and wait may move at once."""

    def clear(self) -> None:
        for name in self.__slots__:
            getattr(self, name).clear()


class Descent:
    """Improves the order of one computation until nothing near is better."""

    def __init__(
        self,
        sequence: UnitSequence,
        terms: Terms,
        options: Mapping[int, Sequence[int]],
        order: Order,
        *,
        most_bytes: int | None = None,
        parameters: SearchParameters = PARAMETERS,
        replay: RobustReplay | None = None,
    ) -> None:
        """Prepares a search.

        Args:
            sequence: The computation.
            terms: The costs of its tasks; left as the result of the search wants it.
            options: For each group that may change the candidates to try.
            order: Where to begin.
            most_bytes: Bytes that the estimate of live memory may reach.
            parameters: Of the search.
            replay: Of the order to begin with under several models; by default under
                the terms alone.
        """
        self._units, self._terms, self._options = sequence.units, terms, options
        self._parameters, self._budget = parameters, 0
        self._replay = replay or IncrementalReplay(sequence, terms, order)
        self._neighbours = Neighbours(sequence.units, order, parameters)
        self._constraints = Constraints(sequence, order, most_bytes)
        self._pairs = async_pairs(sequence, terms, frozenset(options))
        alone = self._replay.alone
        heavy = parameters.heavy * sum(alone)
        self._heavy = [
            number
            for number, unit in enumerate(sequence.units)
            if alone[number] >= heavy
            and all(isinstance(node, Run) for node in unit.nodes)
        ]
        self._launchers: dict[int, list[int]] = {}
        for pair in self._pairs:
            if pair.group is not None:
                self._launchers.setdefault(pair.group, []).append(pair.start)
        self._tasks = {
            group: frozenset(
                terms.number(launch.task)
                for unit in launchers
                for launch in sequence.units[unit].launches
            )
            for group, launchers in self._launchers.items()
        }
        self._unvisited = _Unvisited()
        self._notice(0, len(order))
        self._kept = self._arrangement(order)
        self._changed_first, self._changed_end = len(order), 0
        """The stretch outside of which the order is that of what was kept."""

    @property
    def evaluations(self) -> int:
        """Orders that were replayed."""
        return self._replay.evaluations

    @property
    def excess_seconds(self) -> float:
        """Seconds of the present order beyond its kernels, each alone."""
        return self._replay.excess_seconds

    def allows(self, order: Order) -> bool:
        """True if an order keeps to what XLA, streams and memory ask for."""
        return self._constraints.allow(order)

    def eager(self) -> Arrangement:
        """An order in which streams are kept busy; where it takes too much, not."""
        replay, clashes = self._replay, self._constraints.clashes
        order = eager(self._units, replay.alone, replay.task_seconds, clashes)
        return Arrangement(order, (), 0.0) if self.allows(order) else self._kept

    def run(
        self,
        evaluations: int,
        dice: random.Random | None = None,
        *,
        settings_first: bool = False,
    ) -> Arrangement:
        """The best that is found from the present order and settings.

        Args:
            evaluations: Orders to replay at most.
            dice: Where it decides, the search goes on from places near the best one.
            settings_first: Begins with settings alone, for an order that was found
                while fewer of them could be told apart.
        """
        self._budget = self.evaluations + evaluations
        worth = self._parameters.worth
        if settings_first:
            self._settle()
        self._descend()
        self._keep()
        met, in_vain = {self._place()}, 0
        patience = self._parameters.in_vain * (len(self._pairs) + len(self._heavy))
        while dice and self._pairs and in_vain < patience and not self._is_over():
            self._perturb(dice)
            self._descend(self._parameters.short_rounds)
            if self._replay.seconds < self._kept.seconds:
                self._descend()
            place = self._place()
            in_vain = in_vain + 1 if place in met else 0
            met.add(place)
            if self._replay.seconds < self._kept.seconds * (1 - worth):
                self._keep()
            else:
                self._return()
        return self._kept

    def _place(self) -> int:
        """A number for the present order and settings, another for others."""
        return hash((tuple(self._replay.order), tuple(self._terms.choice)))

    def _arrangement(self, order: Order) -> Arrangement:
        choice = self._terms.choice
        settings = tuple((group, choice[group]) for group in sorted(self._options))
        return Arrangement(order, settings, self._replay.seconds)

    def _keep(self) -> None:
        """Makes the present order and settings those to return to."""
        self._kept = self._arrangement(tuple(self._replay.order))
        self._changed_first, self._changed_end = len(self._units), 0

    def _return(self) -> None:
        """Stands again where nothing near was better."""
        terms = self._terms
        groups = [g for g, one in self._kept.settings if terms.choice[g] != one]
        for group, candidate in self._kept.settings:
            terms.choose(group, candidate)
        first, end = self._changed_first, self._changed_end
        splice = Splice(first, self._kept.order[first:end]) if first < end else None
        self._take((splice,) if splice else (), groups)
        self._unvisited.clear()
        self._changed_first, self._changed_end = len(self._units), 0

    def _take(self, neighbour: Neighbour, groups: Sequence[int] = ()) -> None:
        """Stands at a neighbour, with settings of groups that have changed."""
        splices, changed = self._with_launches(neighbour, groups)
        if splices:
            self._replay.take(splices, changed)
        if neighbour:
            merged = self._neighbours.merged(neighbour)
            self._constraints.take_with(merged)
            self._neighbours.take(merged)
            self._changed_first = min(self._changed_first, merged.first)
            self._changed_end = max(self._changed_end, merged.end)

    def _with_launches(
        self, neighbour: Neighbour, groups: Iterable[int]
    ) -> tuple[Neighbour, frozenset[int]]:
        """A neighbour with all launches of some groups, and the tasks of these."""
        launchers = [unit for g in groups for unit in self._launchers.get(g, ())]
        if not launchers:
            return neighbour, _NONE
        tasks = _NONE.union(*(self._tasks.get(group, _NONE) for group in groups))
        place_of = self._neighbours.place_of
        launches = [
            Splice(place_of[unit], (unit,))
            for unit in launchers
            if not any(s.first <= place_of[unit] < s.end for s in neighbour)
        ]
        return tuple(sorted((*neighbour, *launches), key=_first)), tasks

    def _notice(self, first: int, last: int) -> None:
        """Marks what is near a changed stretch as worth another look."""
        parameters, unvisited = self._parameters, self._unvisited
        first, last = first - parameters.noticed, last + parameters.noticed
        place_of = self._neighbours.place_of
        for number, pair in enumerate(self._pairs):
            ends = [place_of[wait] for wait in pair.waits] or [last]
            if place_of[pair.start] <= last and max(ends) >= first:
                unvisited.shifts.add(number)
                unvisited.stretches.add(number)
                if pair.group is not None:
                    unvisited.settings.add(pair.group)
                    if self._is_of_few(pair.group):
                        unvisited.both.add(number)
        unvisited.kernels.update(
            number for number in self._heavy if first <= place_of[number] <= last
        )

    def _is_of_few(self, group: int) -> bool:
        return len(self._launchers[group]) <= self._parameters.together

    def _is_over(self) -> bool:
        return self.evaluations >= self._budget

    def _descend(self, rounds_made: int | None = None) -> None:
        """Small moves first, and where none is left to make, larger ones."""
        pairs, unvisited, neighbours = self._pairs, self._unvisited, self._neighbours
        rounds: tuple[tuple[set[int], Callable[[int], bool]], ...] = (
            (unvisited.shifts, lambda number: self._shift(pairs[number], None)),
            (unvisited.settings, lambda group: self._best((), group)),
            (
                unvisited.kernels,
                lambda unit: self._best(neighbours.shifted(unit), None),
            ),
            (unvisited.both, lambda n: self._shift(pairs[n], pairs[n].group)),
            (unvisited.stretches, lambda number: self._stretch(pairs[number])),
        )
        rounds = rounds[:rounds_made]
        number = 0
        while number < len(rounds) and not self._is_over():
            fresh, look = rounds[number]
            improved = False
            for item in sorted(fresh):
                fresh.discard(item)
                improved |= look(item)
                # What is new for smaller moves comes first; those are a round by turns.
                if self._is_over() or (improved and number > 0):
                    break
            number = 0 if improved else number + 1

    def _settle(self) -> None:
        """Settings alone, until none is better in this order."""
        fresh = self._unvisited.settings
        while fresh and not self._is_over():
            for group in sorted(fresh):
                fresh.discard(group)
                self._best((), group)
                if self._is_over():
                    break

    def _shift(self, pair: AsyncPair, group: int | None) -> bool:
        improved = False
        for unit in (pair.start, *pair.waits):
            improved |= self._best(self._neighbours.shifted(unit), group)
        return improved

    def _stretch(self, pair: AsyncPair) -> bool:
        if not pair.waits:
            return False
        group = pair.group
        if group is not None and not self._is_of_few(group):
            group = None
        return self._best(self._neighbours.stretched(pair), group)

    def _best(self, neighbours: Iterable[Neighbour], group: int | None) -> bool:
        """Takes the best of some neighbours, each with settings of a group."""
        if group is None:
            least = self._replay.seconds * (1 - self._parameters.worth)
            found: Neighbour | None = None
            for neighbour in neighbours:
                seconds = self._replay.seconds_with(neighbour, least)
                if seconds < least and self._is_allowed(neighbour):
                    least, found = seconds, neighbour
            if found is None:
                return False
            first, end = found[0].first, found[-1].end
            self._take(found)
            self._notice(first, end - 1)
            return True
        return self._best_with(neighbours, group)

    def _best_with(self, neighbours: Iterable[Neighbour], group: int) -> bool:
        """The same, where a group may get another setting as well."""
        terms, each = self._terms, [*neighbours]
        least = self._replay.seconds * (1 - self._parameters.worth)
        found: Neighbour | None = None
        present = chosen = terms.choice[group]
        for candidate in dict.fromkeys((present, *self._options[group])):
            terms.choose(group, candidate)
            groups = (group,) if candidate != present else ()
            for neighbour in (*each, ()) if groups else each:
                splices, changed = self._with_launches(neighbour, groups)
                seconds = self._replay.seconds_with(splices, least, changed)
                if seconds < least and self._is_allowed(neighbour):
                    least, chosen, found = seconds, candidate, neighbour
        terms.choose(group, chosen)
        if found is None:
            return False
        groups = (group,) if chosen != present else ()
        splices, _ = self._with_launches(found, groups)
        first, end = splices[0].first, splices[-1].end
        self._take(found, groups)
        self._notice(first, end - 1)
        return True

    def _is_allowed(self, neighbour: Neighbour) -> bool:
        if not neighbour:
            return True
        return self._constraints.allow_with(self._neighbours.merged(neighbour))

    def _perturb(self, dice: random.Random) -> None:
        """A few changes that are taken whatever they cost."""
        for _ in range(dice.randint(1, self._parameters.perturbations)):
            pair = dice.choice(self._pairs)
            unit = dice.choice((pair.start, *pair.waits))
            if self._heavy and not dice.randrange(3):
                unit = dice.choice(self._heavy)
            neighbours = [*self._neighbours.shifted(unit)]
            if neighbours:
                neighbour = dice.choice(neighbours)
                if self._is_allowed(neighbour):
                    self._take(neighbour)
                    self._notice(neighbour[0].first, neighbour[-1].end - 1)
            if pair.group is not None and dice.randrange(2):
                candidate = dice.choice(self._options[pair.group])
                self._terms.choose(pair.group, candidate)
                self._take((), [pair.group])
                self._notice(0, len(self._units))


def _first(splice: Splice) -> int:
    return splice.first
