"""Replay of a block that is replayed many times, with numbers for its tasks.

A search over settings replays one window thousands of times, each time with other
prices, and looks at nothing but totals and the time of each collective. The rules are
those of `lagom_jax.cost.streams`, and so are the figures, to the last bit; what depends
on the block alone is worked out once.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

from lagom_jax.cost.contention import Rates
from lagom_jax.cost.numbered_block import (
    STREAMS,
    Action,
    LaunchTask,
    NumberedBlock,
    Repeat,
    RunCollective,
    RunKernels,
    WaitFor,
)
from lagom_jax.cost.rates_of_loads import NOTHING
from lagom_jax.cost.replay import REMEMBERED_STATES, period_of
from lagom_jax.cost.streams import State
from lagom_jax.cost.timeline import Totals

_Speeds: TypeAlias = tuple[float, tuple[float, ...]]
"""Of what computes, and of what flies."""


@dataclasses.dataclass(frozen=True, slots=True)
class TaskTerms:
    """Prices and loads by number of a task."""

    seconds: list[float]
    """Alone."""
    own_loads: list[int]
    """The number of the load that a kernel is on the compute stream."""
    loads: list[int]
    """The same on another stream; that of a collective on any."""

    @classmethod
    def of_nothing(cls, tasks: int) -> TaskTerms:
        """Tasks that take no time and put no load on the GPU.

        Example:
            >>> TaskTerms.of_nothing(2).seconds
            [0.0, 0.0]
        """
        return cls([0.0] * tasks, [NOTHING] * tasks, [NOTHING] * tasks)


class SpeedsByLoads:
    """Speeds by the numbers of loads, so that what flies is looked up once.

    Example:
        >>> speeds = SpeedsByLoads(lambda flying: lambda own: Rates(0.5, (1.0,)))
        >>> speeds.beside((3,)).of(1)
        (0.5, (1.0,))
    """

    def __init__(
        self, rates: Callable[[tuple[int, ...]], Callable[[int], Rates]]
    ) -> None:
        """Knows nothing yet.

        Args:
            rates: From the numbers of the loads of what flies, and then from that of
                what computes, to speeds.
        """
        self._rates = rates
        self._known: dict[tuple[int, ...], SpeedsBeside] = {}

    def beside(self, flying: tuple[int, ...]) -> SpeedsBeside:
        """Speeds beside what flies, by its loads."""
        found = self._known.get(flying)
        if found is None:
            found = self._known[flying] = SpeedsBeside(self._rates(flying))
        return found


class SpeedsBeside:
    """Speeds beside what flies, by the load of what computes; see `SpeedsByLoads`."""

    __slots__ = ("_known", "_rates")

    def __init__(self, rates: Callable[[int], Rates]) -> None:
        """Knows nothing yet.

        Args:
            rates: From the number of the load of what computes to speeds.
        """
        self._rates = rates
        self._known: dict[int, _Speeds] = {}

    def of(self, own: int) -> _Speeds:
        """Of what computes, and of what flies."""
        found = self._known.get(own)
        if found is None:
            rates = self._rates(own)
            found = self._known[own] = rates.running, rates.flying
        return found


class Books:
    """Totals of a stretch, and the time of each collective by its number."""

    __slots__ = ("seconds", "totals")

    def __init__(self, tasks: int) -> None:
        """Begins with nothing.

        Args:
            tasks: How many there are.
        """
        self.totals = Totals()
        self.seconds = [0.0] * tasks

    def add(self, other: Books, times: float = 1) -> None:
        """Takes over another stretch, as if it had happened so many times."""
        self.totals.add(other.totals, times)
        pairs = zip(self.seconds, other.seconds, strict=True)
        self.seconds = [own + theirs * times for own, theirs in pairs]


@dataclasses.dataclass(slots=True)
class _Flying:
    """A launched task that is not done."""

    left: float
    number: int
    token: int


class NumberedReplay:
    """One replay of a block.

    Example:
        >>> from lagom_jax.hlo.work import Work
        >>> from lagom_jax.program.program import Kernel, Run
        >>> one = NumberedBlock((Run(Kernel("k", Work("copy", 0.0, 1, 1))),))
        >>> terms = TaskTerms([2.0], [0], [0])
        >>> speeds = SpeedsByLoads(lambda flying: lambda own: Rates(1.0, ()))
        >>> NumberedReplay(one, terms, speeds).books().totals.step_seconds
        2.0
    """

    def __init__(
        self, block: NumberedBlock, terms: TaskTerms, speeds: SpeedsByLoads
    ) -> None:
        """Begins with nothing under way.

        Args:
            block: What is replayed.
            terms: Of its tasks.
            speeds: Contention.
        """
        self._block, self._terms, self._all_speeds = block, terms, speeds
        self._collective = block.collective
        self._now = 0.0
        self._queues: dict[int, deque[_Flying]] = {}
        """By stream, in the order in which they became busy."""
        self._fronts: list[_Flying] = []
        """Tasks under way: the first of each queue."""
        self._speeds = speeds.beside(())

    def books(self) -> Books:
        """Replays the block, and waits for all that is under way."""
        books = Books(len(self._block.tasks))
        self._run(self._block.actions, books)
        while self._queues:
            longest = max(
                self._queues, key=lambda s: sum(f.left for f in self._queues[s])
            )
            self._stand_still(longest, books)
        return books

    def _run(self, actions: Sequence[Action], books: Books) -> None:
        for action in actions:
            if isinstance(action, RunKernels):
                self._kernels(action.numbers, books)
            elif isinstance(action, LaunchTask):
                self._launch(action)
            elif isinstance(action, WaitFor):
                for token in action.tokens:
                    self._wait(token, books)
            elif isinstance(action, RunCollective):
                number = action.number
                if self._queues:
                    self._wait_for_any(self._block.in_turn[number], books)
                begun = self._now
                self._compute(
                    self._terms.loads[number], self._terms.seconds[number], books
                )
                seconds = self._now - begun
                books.totals.communication_seconds += seconds
                books.totals.exposed_seconds += seconds
                books.seconds[number] += seconds
            else:
                books.add(self._loop(action))

    def _kernels(self, numbers: Sequence[int], books: Books) -> None:
        alone, loads = self._terms.seconds, self._terms.own_loads
        totals, collective = books.totals, self._collective
        computed, contended = totals.compute_seconds, totals.contention_seconds
        for number in numbers:
            seconds, begun, fronts = alone[number], self._now, self._fronts
            if not fronts:
                self._now = begun + seconds
            elif len(fronts) > 1:
                self._compute(loads[number], seconds, books)
            else:
                # Most kernels run beside one task that goes on when they have ended.
                speed, (rate,) = self._speeds.of(loads[number])
                (flight,), needed = fronts, seconds / speed
                if needed < flight.left / rate:
                    self._now = begun + needed
                    flight.left -= needed * rate
                    if collective[flight.number]:
                        totals.communication_seconds += needed
                        books.seconds[flight.number] += needed
                    if flight.left <= 0.0:
                        self._land(None)
                else:
                    self._compute(loads[number], seconds, books)
            spent = self._now - begun
            computed += spent
            contended += spent - seconds
        totals.compute_seconds, totals.contention_seconds = computed, contended

    def _launch(self, action: LaunchTask) -> None:
        number, stream, token = action
        flight = _Flying(self._terms.seconds[number], number, token)
        queue = self._queues.get(stream)
        if queue is None:
            self._queues[stream] = deque((flight,))
            self._look_at_fronts()
        else:
            queue.append(flight)

    def _wait(self, token: int, books: Books) -> None:
        for stream, queue in list(self._queues.items()):
            while any(flight.token == token for flight in queue):
                self._stand_still(stream, books)

    def _wait_for_any(self, tasks: frozenset[int], books: Books) -> None:
        for stream, queue in list(self._queues.items()):
            while any(flight.number in tasks for flight in queue):
                self._stand_still(stream, books)

    def _compute(self, load: int, left: float, books: Books) -> None:
        """Does work on the compute stream."""
        while left > 0.0:
            fronts = self._fronts
            if not fronts:
                self._now += left
                return
            speed, flying = self._speeds.of(load)
            needed = left / speed
            step, first = _next_end(fronts, flying)
            if needed <= step:
                step, first, left = needed, (first if needed == step else None), 0.0
            else:
                left -= step * speed
            self._progress(flying, step, first, books)

    def _stand_still(self, charged: int, books: Books) -> None:
        """Waits for the next end on any stream."""
        _, flying = self._speeds.of(NOTHING)
        step, first = _next_end(self._fronts, flying)
        if self._collective[self._queues[charged][0].number]:
            books.totals.exposed_seconds += step
        else:
            books.totals.waiting_seconds += step
        self._progress(flying, step, first, books)

    def _progress(
        self,
        flying: Sequence[float],
        step: float,
        ended: _Flying | None,
        books: Books,
    ) -> None:
        self._now += step
        emptied = False
        for flight, rate in zip(self._fronts, flying, strict=True):
            flight.left -= step * rate
            if self._collective[flight.number]:
                books.totals.communication_seconds += step
                books.seconds[flight.number] += step
            # The one that was computed to end here has ended, whatever rounding says.
            emptied = emptied or flight is ended or flight.left <= 0.0
        if emptied:
            self._land(ended)

    def _land(self, ended: _Flying | None) -> None:
        """Removes the tasks that are done, and streams that have nothing left."""
        for stream in list(self._queues):
            queue = self._queues[stream]
            while queue and (queue[0] is ended or queue[0].left <= 0.0):
                queue.popleft()
            if not queue:
                del self._queues[stream]
        self._look_at_fronts()

    def _look_at_fronts(self) -> None:
        """Notes what is under way, and finds the speeds that go with it."""
        self._fronts = [queue[0] for queue in self._queues.values()]
        loads = self._terms.loads
        key = tuple([loads[flight.number] for flight in self._fronts])
        self._speeds = self._all_speeds.beside(key)

    def _loop(self, loop: Repeat) -> Books:
        tasks = len(self._block.tasks)
        total = Books(tasks)
        states: deque[State] = deque(maxlen=REMEMBERED_STATES)
        rounds_before: deque[tuple[Books, float]] = deque(maxlen=REMEMBERED_STATES)
        trip = 0
        while trip < loop.trips:
            begun, books = self._now, Books(tasks)
            self._run(loop.body, books)
            total.add(books)
            trip += 1
            state = self._state()
            rounds_before.append((books, self._now - begun))
            period = period_of(states, state)
            states.append(state)
            if period:
                rounds = (loop.trips - trip) // period
                for earlier, seconds in list(rounds_before)[-period:]:
                    total.add(earlier, rounds)
                    self._now += seconds * rounds
                trip += rounds * period
                states.clear()
                rounds_before.clear()
        return total

    def _state(self) -> State:
        """Everything that matters for what happens next, but not the clock."""
        return tuple(
            [
                (
                    STREAMS[stream],
                    flight.token,
                    self._block.tasks[flight.number],
                    flight.left,
                )
                for stream in sorted(self._queues)
                for flight in self._queues[stream]
            ]
        )


def _next_end(
    fronts: Sequence[_Flying], flying: Sequence[float]
) -> tuple[float, _Flying | None]:
    """Time at which the first of the tasks under way ends, and that task."""
    first, step = None, float("inf")
    for flight, rate in zip(fronts, flying, strict=True):
        needed = flight.left / rate
        if needed < step:
            first, step = flight, needed
    return step, first
