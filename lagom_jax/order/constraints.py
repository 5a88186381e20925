"""Constraints on an order beyond what its units need: XLA's, the streams', memory's.

Each can be asked for a whole order, or for a stretch of one that is allowed: outside
of the stretch nothing changes, since what is under way or alive at its ends stays the
same.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence

from lagom_jax.order.sequence import Order, UnitSequence
from lagom_jax.order.splices import Splice
from lagom_jax.order.streams import Clashes, clashes, sharing
from lagom_jax.program.program import Stream


class Constraints:
    """The constraints on one computation, and the order that was taken last."""

    def __init__(
        self, sequence: UnitSequence, order: Order, most_bytes: int | None
    ) -> None:
        """Reads off the given order which exceptions there are.

        Args:
            sequence: The computation.
            order: The order to begin with.
            most_bytes: Bytes that the estimate of live memory may reach.
        """
        self._sequence, self._most_bytes = sequence, most_bytes
        units = sequence.units
        self._works = [bool(unit.nodes) for unit in units]
        self._signals = [
            (frozenset(one.token for one in unit.launches), frozenset(unit.tokens))
            for unit in units
        ]
        launches = [one for unit in units for one in unit.launches]
        self._streams = {launch.token: launch.stream for launch in launches}
        two = Stream.ASIDE in self._streams.values()
        self.clashes: Clashes = clashes(launches) if two else {}
        """By token of a launch: those that must not be under way at its side."""
        # With one stream nothing else is ever beside a collective.
        self._shared = sharing(launches) if two else None
        given = sequence.given
        self._hurried_given = self._hurried(given)
        self._clashing_given = self._clashing(given)
        self._take(order)

    def allow(self, order: Order) -> bool:
        """True if an order keeps to all of them."""
        if not self._hurried(order) <= self._hurried_given:
            return False
        if not self._clashing(order) <= self._clashing_given:
            return False
        limit = self._most_bytes
        return limit is None or self._sequence.live_bytes(order) <= limit

    def _take(self, order: Sequence[int]) -> None:
        self._order = [*order]
        self._kept = self.allow(tuple(order))
        self._under_way: list[frozenset[int]] = [frozenset()] * (len(order) + 1)
        self._note_under_way(0, len(order))
        self._live = None
        if self._most_bytes is not None:
            self._live = _LiveBytes(self._sequence, self._order, self._most_bytes)

    def allow_with(self, splice: Splice) -> bool:
        """True if the order that was taken keeps to them with a splice."""
        if not self._kept:
            return self.allow(splice.applied(self._order))
        begin, end = self._between_kernels(splice.first, splice.end)
        order = self._order
        stretch = [
            *order[begin : splice.first],
            *splice.units,
            *order[splice.end : end],
        ]
        if not self._hurried(stretch, self._under_way[begin]) <= self._hurried_given:
            return False
        clashing = self._clashing(splice.units, self._under_way[splice.first])
        if not clashing <= self._clashing_given:
            return False
        return self._live is None or self._live.allows(splice)

    def take_with(self, splice: Splice) -> None:
        """Applies a splice to the order that was taken."""
        begin, end = splice.first, splice.end
        self._order[begin:end] = splice.units
        if not self._kept:
            self._take(self._order)
            return
        self._note_under_way(begin, end)
        if self._live is not None:
            self._live.take(splice)

    def _note_under_way(self, begin: int, end: int) -> None:
        under_way, known = self._under_way[begin], self._under_way
        for place in range(begin, end):
            known[place] = under_way
            number = self._order[place]
            if self._works[number]:
                launched, waited = self._signals[number]
                if launched or waited:
                    under_way = (under_way | launched) - waited
        if end == len(self._order):
            known[end] = under_way

    def _between_kernels(self, begin: int, end: int) -> tuple[int, int]:
        """A stretch, made longer up to the kernels before and behind it."""
        order, works, signals = self._order, self._works, self._signals
        while begin > 0:
            number = order[begin - 1]
            if works[number] and not any(signals[number]):
                break
            begin -= 1
        while end < len(order):
            number = order[end]
            if works[number] and not any(signals[number]):
                break
            end += 1
        return begin, end

    def _clashing(
        self, order: Iterable[int], begun: frozenset[int] = frozenset()
    ) -> frozenset[tuple[int, int]]:
        """Launches that are under way at each other's side, and must not be."""
        found: set[tuple[int, int]] = set()
        under_way = {*begun}
        for number in order if self.clashes else ():
            launched, waited = self._signals[number]
            for token in launched:
                beside = under_way & self.clashes.get(token, frozenset())
                found.update((other, token) for other in beside)
                under_way.add(token)
            under_way -= waited
        return frozenset(found)

    def _hurried(
        self, order: Iterable[int], begun: frozenset[int] = frozenset()
    ) -> frozenset[int]:
        """Collectives that XLA would make synchronous in a way that is not wanted.

        That is what it does with those that are waited for before any kernel has run
        since their launch. On the compute stream one of these runs beside whatever is
        under way, and two of them run one after the other.
        """
        found: set[int] = set()
        under_way = {*begun}
        fresh: set[int] = set()
        synchronous: set[int] = set()
        streams, shared = self._streams, self._shared
        for number in filter(self._works.__getitem__, order):
            launched, waited = self._signals[number]
            if not (launched or waited):
                fresh.clear()
                synchronous.clear()
                continue
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
        return frozenset(found)


@dataclasses.dataclass(slots=True)
class _Lifetime:
    """First and last place at which a buffer is accessed."""

    first: int
    last: int


class _LiveBytes:
    """The estimate of live memory along an order, as `UnitSequence.live_bytes` has it.

    A buffer that is first or last accessed in a stretch still is so when the stretch is
    in another order, so what is alive outside of it stays the same.
    """

    def __init__(
        self, sequence: UnitSequence, order: Sequence[int], most_bytes: int
    ) -> None:
        self._most_bytes, self._end = most_bytes, len(order)
        self._sizes = sizes = sequence.buffers.sizes
        self._within = [unit.within_bytes for unit in sequence.units]
        self._accesses = [
            [buffer for buffer in unit.accesses if buffer in sizes]
            for unit in sequence.units
        ]
        self._lifetimes: dict[int, _Lifetime] = {}
        for place, number in enumerate(order):
            for buffer in self._accesses[number]:
                known = self._lifetimes.setdefault(buffer, _Lifetime(place, place))
                known.last = place
        for buffer in sequence.buffers.results & self._lifetimes.keys():
            # Read by the caller, after everything.
            self._lifetimes[buffer].last = self._end
        change = defaultdict[int, int](int)
        for buffer, lifetime in self._lifetimes.items():
            change[lifetime.first + 1] += sizes[buffer]
            change[lifetime.last + 1] -= sizes[buffer]
        self._entering = list(
            itertools.accumulate(change[place] for place in range(self._end + 1))
        )
        """By place the bytes that are alive there and were accessed before."""

    def allows(self, splice: Splice) -> bool:
        """True if nowhere in the stretch more is alive than may be."""
        live = self._entering[splice.first]
        changes = self._changes(splice, *self._seen(splice))
        for number, (opened, closed) in zip(splice.units, changes, strict=True):
            live += opened
            if live + self._within[number] > self._most_bytes:
                return False
            live -= closed
        return True

    def take(self, splice: Splice) -> None:
        """Makes the stretch stand as the splice has it."""
        firsts, lasts = self._seen(splice)
        live = self._entering[splice.first]
        changes = self._changes(splice, firsts, lasts)
        for place, (opened, closed) in enumerate(changes, splice.first + 1):
            live += opened - closed
            self._entering[place] = live
        for buffer, last in lasts.items():
            lifetime = self._lifetimes[buffer]
            if lifetime.first >= splice.first:
                lifetime.first = firsts[buffer]
            if lifetime.last < splice.end:
                lifetime.last = last

    def _seen(self, splice: Splice) -> tuple[dict[int, int], dict[int, int]]:
        """The first and the last place in the stretch where each buffer is accessed."""
        firsts, lasts = dict[int, int](), dict[int, int]()
        for place, number in enumerate(splice.units, splice.first):
            for buffer in self._accesses[number]:
                firsts.setdefault(buffer, place)
                lasts[buffer] = place
        return firsts, lasts

    def _changes(
        self, splice: Splice, firsts: dict[int, int], lasts: dict[int, int]
    ) -> list[tuple[int, int]]:
        """By place in the stretch the bytes that begin and end to be alive there."""
        opened, closed = [0] * len(splice.units), [0] * len(splice.units)
        for buffer, place in firsts.items():
            if self._lifetimes[buffer].first >= splice.first:
                opened[place - splice.first] += self._sizes[buffer]
        for buffer, place in lasts.items():
            if self._lifetimes[buffer].last < splice.end:
                closed[place - splice.first] += self._sizes[buffer]
        return list(zip(opened, closed, strict=True))
