"""An order in which no stream has nothing to do while something could be launched.

The kernels keep their order. A collective is launched when its stream is free, of
those that could be the one first whose result is needed first, and waited for only
where its result is used, or where what must not be at its side is due. A scheduler that
looks at one collective after another leaves streams idle before a stretch in which they
are all in demand; moves of one collective at a time then find no way out, because each
would only take the others' turn.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence

from lagom_jax.order.sequence import Order, Unit
from lagom_jax.order.streams import Clashes
from lagom_jax.program.program import Launch, Stream, Task, Wait


def eager(
    units: Sequence[Unit],
    alone: Sequence[float],
    seconds: Callable[[Task], float],
    clashes: Clashes | None = None,
) -> Order:
    """The order of some units in which streams are kept busy.

    Args:
        units: All units, by number, in a legal order.
        alone: Seconds that each computes.
        seconds: Time that a launched task takes.
        clashes: Launches that must not be under way at each other's side.

    Example:
        >>> units = [Unit(n, (), (), needs, frozenset(), 0)
        ...          for n, needs in enumerate([(), (0,), (0,)])]
        >>> eager(units, [0.0, 1.0, 1.0], lambda task: 1.0)
        (0, 1, 2)
    """
    return _Eager(units, alone, seconds, clashes or {}).order()


class _Eager:
    """The walk along the units, and its clock."""

    def __init__(
        self,
        units: Sequence[Unit],
        alone: Sequence[float],
        seconds: Callable[[Task], float],
        clashes: Clashes,
    ) -> None:
        self._units, self._alone, self._seconds = units, alone, seconds
        self._clashes = clashes
        self._waits: Mapping[int, int] = {
            token: unit.number for unit in reversed(units) for token in unit.tokens
        }
        self._under_way: set[int] = set()
        self._ending: set[int] = set()
        self._order: list[int] = []
        self._done: set[int] = set()
        self._now = 0.0
        self._free: dict[Stream, float] = {}
        self._ends: dict[int, float] = {}
        self._rank: dict[int, int] = {}
        """By unit that launches: its turn, where several could be launched."""
        self._behind: dict[int, list[int]] = {}
        """By kernel: the units that launch, and need no later kernel than that."""
        self._open: list[int] = []
        """Turns of the units that launch, and need no kernel any more, sorted."""

    def order(self) -> Order:
        kernels = [u.number for u in self._units if u.nodes and not _is_of(u)]
        turns = list(self._by_need(kernels))
        self._rank = {number: turn for turn, number in enumerate(turns)}
        last = self._last_kernels(frozenset(kernels))
        for number in turns:
            kernel = last[number]
            if kernel is None:
                bisect.insort(self._open, self._rank[number])
            else:
                self._behind.setdefault(kernel, []).append(number)
        for number, following in zip(kernels, (*kernels[1:], None), strict=False):
            due = set(() if following is None else self._missing(following, self._done))
            self._launch_what_can_be(turns, due)
            self._carry_out(number)
        for unit in self._units:
            self._carry_out(unit.number)
        return tuple(self._order)

    def _by_need(self, kernels: Sequence[int]) -> Iterator[int]:
        """The units that launch, those first whose results are needed first."""
        seen: set[int] = set()
        for number in (*kernels, *range(len(self._units))):
            for needed in self._missing(number, seen):
                seen.add(needed)
                if self._units[needed].launches and _is_of(self._units[needed]):
                    yield needed

    def _missing(self, number: int, there: set[int]) -> list[int]:
        """A unit and all that it needs and is not there yet, in the given order."""
        found: set[int] = set()
        pending = [number]
        while pending:
            one = pending.pop()
            if one not in there and one not in found:
                found.add(one)
                pending += self._units[one].needs
        return sorted(found)

    def _last_kernels(self, kernels: frozenset[int]) -> list[int | None]:
        """By unit: the last kernel, in the given order, that it needs."""
        found: list[int | None] = []
        for unit in self._units:
            # In a legal order, whatever a unit needs has been seen.
            needed = [one if one in kernels else found[one] for one in unit.needs]
            found.append(max((one for one in needed if one is not None), default=None))
        return found

    def _launch_what_can_be(self, turns: Sequence[int], due: set[int]) -> None:
        """Launches where streams are free, and in any case what is due.

        A launch right before its wait would make XLA see no reason for either.
        """
        place = 0
        while place < len(self._open):
            turn = self._open[place]
            number = turns[turn]
            if number in self._done or self._is_launched(number, due):
                self._open.remove(turn)
            # An earlier turn that has become possible by this comes at the next kernel.
            place = bisect.bisect_right(self._open, turn)

    def _is_launched(self, number: int, due: set[int]) -> bool:
        """Launches what one unit launches, if that can be; whether it could."""
        if number not in due and any(
            self._free.get(one.stream, 0.0) > self._now or self._beside(one.token)
            for one in self._units[number].launches
        ):
            return False
        pending, seen = [*self._units[number].needs], set[int]()
        while pending:
            one = pending.pop()
            if one not in self._done and one not in seen:
                if self._units[one].nodes:
                    return False
                seen.add(one)
                pending += self._units[one].needs
        self._carry_out(number)
        return True

    def _end_what_clashes(self, number: int) -> None:
        """Waits for what must not be at the side of a launch, as far as it can.

        A wait that needs the launch itself cannot come first: then the order clashes,
        and whoever asked for it does not take it.
        """
        if number in self._done or number in self._ending:
            return
        self._ending.add(number)
        for launch in self._units[number].launches:
            for token in sorted(self._beside(launch.token)):
                if token in self._waits:
                    self._carry_out(self._waits[token])
        self._ending.discard(number)

    def _beside(self, token: int) -> set[int]:
        """Transfers that are under way, and must not be at the side of a launch."""
        return self._under_way & self._clashes.get(token, frozenset())

    def _carry_out(self, number: int) -> None:
        for one in self._missing(number, self._done):
            self._end_what_clashes(one)
            if one in self._done:
                continue
            self._done.add(one)
            self._order.append(one)
            for number in self._behind.pop(one, ()):
                bisect.insort(self._open, self._rank[number])
            self._now += self._alone[one]
            for node in self._units[one].nodes:
                if isinstance(node, Launch):
                    begun = max(self._now, self._free.get(node.stream, 0.0))
                    ended = begun + self._seconds(node.task)
                    self._free[node.stream] = self._ends[node.token] = ended
                    self._under_way.add(node.token)
                elif isinstance(node, Wait):
                    ends = (self._ends.get(token, 0.0) for token in node.tokens)
                    self._now = max(self._now, *ends)
                    self._under_way.difference_update(node.tokens)


def _is_of(unit: Unit) -> bool:
    """True if a unit does nothing but launch or wait."""
    return all(isinstance(node, Launch | Wait) for node in unit.nodes)
