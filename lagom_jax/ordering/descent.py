"""The search on one computation: order and settings together, by small moves.

A collective that is set slower takes less from the kernels beside it, but needs more
room; an order found for fast collectives has no such room. So a start or a wait moves
together with the setting of its collective.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from lagom_jax.hlo.collective import Collective
from lagom_jax.ordering.eager import eager
from lagom_jax.ordering.moves import moved
from lagom_jax.ordering.rehearsal import Rehearsal
from lagom_jax.ordering.sequence import Order, UnitSequence
from lagom_jax.ordering.streams import Clashes, clashes, sharing
from lagom_jax.ordering.terms import Terms
from lagom_jax.schedule.program import Run, Stream

Trial: TypeAlias = tuple[Order, int, int]
"""An order, and the first and the last place where it differs from the present one."""

# Shares of a computation's time below this are no improvement, but rounding.
_WORTH = 1e-6
# How much farther each place is that is tried, and how many units with something to do
# may lie between.
_STRIDE = 1.6
_REACH = 96
_NEAR = 16
# Kernels with less than this share of the time are not moved for themselves.
_HEAVY = 0.01
_KICKS = 3
# After kicks only so many rounds are made, unless they lead below the best.
_SMALL = 2
# Units so far from a changed stretch are looked at again.
_BESIDE = 4
# A setting of so many collectives moves together with any of them. One of more is a
# move by itself: what is good for one of them is not for all.
_TOGETHER = 2


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


@dataclasses.dataclass(slots=True)
class _News:
    """What has not been looked at since something near it changed."""

    shifts: set[int] = dataclasses.field(default_factory=set[int])
    """Flights, whose starts and waits may move."""
    settings: set[int] = dataclasses.field(default_factory=set[int])
    """Groups."""
    kernels: set[int] = dataclasses.field(default_factory=set[int])
    """Units."""
    both: set[int] = dataclasses.field(default_factory=set[int])
    """Flights that may move together with their setting."""
    stretches: set[int] = dataclasses.field(default_factory=set[int])
    """Flights, whose start and wait may move at once."""

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
    ) -> None:
        """Prepares a search.

        Args:
            sequence: The computation.
            terms: What its tasks cost; left as the result of the search wants it.
            options: For each group that may change the candidates to try.
            order: Where to begin.
            most_bytes: What the estimate of live bytes may be at most.
        """
        self._sequence, self._terms, self._options = sequence, terms, options
        self._most_bytes, self._budget = most_bytes, 0
        self._units = sequence.units
        self._rehearsal = Rehearsal(sequence, terms)
        self._flights = flights_of(sequence, terms, frozenset(options))
        self._works = [bool(unit.nodes) for unit in sequence.units]
        self._signals = [
            (frozenset(one.token for one in unit.launches), frozenset(unit.tokens))
            for unit in sequence.units
        ]
        alone = self._rehearsal.alone
        self._heavy = [
            number
            for number, unit in enumerate(sequence.units)
            if alone[number] >= _HEAVY * sum(alone)
            and all(isinstance(node, Run) for node in unit.nodes)
        ]
        self._launchers: dict[int, list[int]] = {}
        for flight in self._flights:
            if flight.group is not None:
                self._launchers.setdefault(flight.group, []).append(flight.start)
        launches = [one for unit in sequence.units for one in unit.launches]
        self._streams = {launch.token: launch.stream for launch in launches}
        two = Stream.ASIDE in self._streams.values()
        self._clashes: Clashes = clashes(launches) if two else {}
        # With one stream nothing else is ever beside a collective.
        self._shared = sharing(launches) if two else None
        self._news = _News()
        self._hurried_given = self._hurried(sequence.given)
        self._clashing_given = self._clashing(sequence.given)
        self._adopt(order)

    @property
    def evaluations(self) -> int:
        """Orders that were replayed."""
        return self._rehearsal.evaluations

    @property
    def excess_seconds(self) -> float:
        """What the present order takes beyond its kernels, each alone."""
        return self._place.seconds - sum(self._rehearsal.alone)

    def allows(self, order: Order) -> bool:
        """Whether an order keeps to what XLA, streams and memory ask for."""
        if not self._hurried(order) <= self._hurried_given:
            return False
        if not self._clashing(order) <= self._clashing_given:
            return False
        limit = self._most_bytes
        return limit is None or self._sequence.live_bytes(order) <= limit

    def eager(self) -> Place:
        """Where streams are kept busy; the present place if that takes too much."""
        rehearsal = self._rehearsal
        order = eager(
            self._units, rehearsal.alone, rehearsal.task_seconds, self._clashes
        )
        return Place(order, (), 0.0) if self.allows(order) else self._place

    def run(
        self,
        evaluations: int,
        dice: random.Random | None = None,
        *,
        settings_first: bool = False,
    ) -> Place:
        """The best place found from the present order and settings.

        Args:
            evaluations: How many orders to replay at most.
            dice: Where it decides, the search goes on from places near the best one.
            settings_first: Begins with settings alone, for an order that was found
                while fewer of them could be told apart.
        """
        self._budget = self.evaluations + evaluations
        if settings_first:
            self._settle()
        self._descend()
        best = self._place
        while dice is not None and not self._is_over() and self._flights:
            self._kick(dice)
            self._descend(_SMALL)
            if self._place.seconds < best.seconds:
                self._descend()
            if self._place.seconds < best.seconds * (1 - _WORTH):
                best = self._place
            else:
                self._return_to(best)
        self._return_to(best)
        return best

    def _adopt(self, order: Order, first: int = 0, last: int | None = None) -> None:
        """Stands at an order under the present settings.

        Args:
            order: The order.
            first: The first place where it, or the setting of what is launched there,
                differs from the one before.
            last: The last such place; by default that of the last unit.
        """
        seconds = self._rehearsal.keep(order, first)
        choice = self._terms.choice
        settings = tuple((group, choice[group]) for group in sorted(self._options))
        self._place = Place(order, settings, seconds)
        self._where = {number: place for place, number in enumerate(order)}
        self._notice(first, len(order) if last is None else last)

    def _notice(self, first: int, last: int) -> None:
        """Marks what is near a changed stretch as worth another look."""
        first, last = first - _BESIDE, last + _BESIDE
        where, news = self._where, self._news
        for number, flight in enumerate(self._flights):
            ends = [where[wait] for wait in flight.waits] or [last]
            if where[flight.start] <= last and max(ends) >= first:
                news.shifts.add(number)
                news.stretches.add(number)
                if flight.group is not None:
                    news.settings.add(flight.group)
                    if len(self._launchers[flight.group]) <= _TOGETHER:
                        news.both.add(number)
        news.kernels.update(n for n in self._heavy if first <= where[n] <= last)

    def _return_to(self, place: Place) -> None:
        """Stands again where nothing near was better."""
        if place is not self._place:
            for group, candidate in place.settings:
                self._terms.choose(group, candidate)
            self._adopt(place.order)
            self._news.clear()

    def _is_over(self) -> bool:
        return self.evaluations >= self._budget

    def _descend(self, rounds_made: int | None = None) -> None:
        """Small moves first, and where none is left to make, larger ones."""
        flights, news = self._flights, self._news
        rounds: tuple[tuple[set[int], Callable[[int], bool]], ...] = (
            (news.shifts, lambda number: self._shift(flights[number], None)),
            (news.settings, lambda group: self._best((), group)),
            (news.kernels, lambda unit: self._best(self._shifted(unit), None)),
            (news.both, lambda n: self._shift(flights[n], flights[n].group)),
            (news.stretches, lambda number: self._stretch(flights[number])),
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
        fresh = self._news.settings
        while fresh and not self._is_over():
            for group in sorted(fresh):
                fresh.discard(group)
                self._best((), group)
                if self._is_over():
                    break

    def _shift(self, flight: Flight, group: int | None) -> bool:
        improved = False
        for unit in (flight.start, *flight.waits):
            improved |= self._best(self._shifted(unit), group)
        return improved

    def _stretch(self, flight: Flight) -> bool:
        if not flight.waits:
            return False
        few = flight.group is not None and (
            len(self._launchers[flight.group]) <= _TOGETHER
        )
        return self._best(self._stretched(flight), flight.group if few else None)

    def _shifted(self, unit: int) -> Iterator[Trial]:
        """A unit in other places."""
        order, place = self._place.order, self._where[unit]
        for step in (-1, 1):
            for target in self._targets(place, step, _REACH):
                first, last = sorted((place, target))
                yield moved(self._units, order, place, target), first, last

    def _stretched(self, flight: Flight) -> Iterator[Trial]:
        """A flight that begins earlier and is waited for later, or the other way."""
        order = self._place.order
        start, wait = self._where[flight.start], self._where[flight.waits[0]]
        for step in (-1, 1):
            for begin in self._targets(start, step, _NEAR):
                one = moved(self._units, order, start, begin)
                place = one.index(flight.waits[0])
                for end in self._targets(wait, -step, _NEAR):
                    if (end > begin) and end != place:
                        other = moved(self._units, one, place, end)
                        ends = (start, begin, place, end)
                        yield other, min(ends), max(ends)

    def _targets(self, place: int, step: int, reach: int) -> Iterator[int]:
        """Places before or behind one, farther and farther away."""
        order, works = self._place.order, self._works
        count, due = 0, 1
        target, last = place + step, None
        while 0 <= target < len(order) and count < reach:
            if works[order[target]]:
                count, last = count + 1, target
                if count == due:
                    yield target
                    last, due = None, max(due + 1, int(due * _STRIDE))
            target += step
        if last is not None:
            yield last

    def _best(self, trials: Iterable[Trial], group: int | None) -> bool:
        """Takes the best of some orders, each with settings of a group."""
        terms, here = self._terms, self._place
        least = here.seconds * (1 - _WORTH)
        found: Trial | None = None
        if group is None:
            for order, first, last in trials:
                seconds = self._rehearsal.try_(order, first, last, least)
                if seconds < least and self.allows(order):
                    least, found = seconds, (order, first, last)
        else:
            present = chosen = terms.choice[group]
            begins = [self._where[start] for start in self._launchers[group]]
            each = [*trials]
            for candidate in dict.fromkeys((present, *self._options[group])):
                terms.choose(group, candidate)
                if candidate != present:
                    each.append((here.order, begins[0], begins[-1]))
                for order, first, last in each:
                    if candidate != present:
                        first, last = min(first, *begins), max(last, *begins)
                    seconds = self._rehearsal.try_(order, first, last, least)
                    if seconds < least and self.allows(order):
                        least, chosen = seconds, candidate
                        found = order, first, last
                if candidate != present:
                    each.pop()
            terms.choose(group, chosen)
        if found is None:
            return False
        self._adopt(*found)
        return True

    def _kick(self, dice: random.Random) -> None:
        """A few changes that are taken whatever they cost."""
        for _ in range(dice.randint(1, _KICKS)):
            flight = dice.choice(self._flights)
            unit = dice.choice((flight.start, *flight.waits))
            if self._heavy and not dice.randrange(3):
                unit = dice.choice(self._heavy)
            trials = [*self._shifted(unit)]
            if trials:
                order, first, last = dice.choice(trials)
                if self.allows(order):
                    self._adopt(order, first, last)
            if flight.group is not None and dice.randrange(2):
                self._terms.choose(
                    flight.group, dice.choice(self._options[flight.group])
                )
                self._adopt(self._place.order)

    def _clashing(self, order: Order) -> frozenset[tuple[int, int]]:
        """Launches that are under way at each other's side, and must not be."""
        found: set[tuple[int, int]] = set()
        under_way: set[int] = set()
        for number in order if self._clashes else ():
            launched, waited = self._signals[number]
            for token in launched:
                beside = under_way & self._clashes.get(token, frozenset())
                found.update((other, token) for other in beside)
                under_way.add(token)
            under_way -= waited
        return frozenset(found)

    def _hurried(self, order: Order) -> frozenset[int]:
        """Collectives that XLA would make synchronous in a way that is not wanted.

        That is what it does with those that are waited for before any kernel has run
        since their launch. On the compute stream one of these runs beside whatever is
        under way, and two of them run one after the other.
        """
        found: set[int] = set()
        under_way: set[int] = set()
        fresh: set[int] = set()
        synchronous: set[int] = set()
        streams, shared = self._streams, self._shared
        for number in filter(self._works.__getitem__, order):
            launched, waited = self._signals[number]
            under_way |= launched
            under_way -= waited
            fresh |= launched
            for token in sorted(waited & fresh):
                beside = under_way
                if shared is not None:
                    beside = under_way & shared.get(token, frozenset())
                others = (streams.get(one) for one in synchronous)
                if beside or any(one != streams.get(token) for one in others):
                    found.add(token)
                synchronous.add(token)
            if not (launched or waited):
                fresh.clear()
                synchronous.clear()
        return frozenset(found)
