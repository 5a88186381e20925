"""The streams of one device, moved forward in time event by event.

Between two events (a task starts, a task ends) every speed is constant, so work done
is speed times time. A task's work is counted in the seconds it would take alone.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from lagom_jax.cost.contention import Contention, Rates
from lagom_jax.cost.ledger import Ledger
from lagom_jax.hlo.collective import Collective
from lagom_jax.program.program import Kernel, Stream, Task

State: TypeAlias = tuple[tuple[Stream, int, Task, float], ...]
"""A task under way or queued: stream, token, task, and the work it has left."""


@dataclasses.dataclass(slots=True)
class Flight:
    """A launched task that is not done."""

    token: int
    task: Task
    left: float
    """Work that is left, in seconds alone."""


class Streams:
    """Tasks under way beside the compute stream, and the clock."""

    def __init__(self, contention: Contention) -> None:
        self.now = 0.0
        self._contention = contention
        self._queues: dict[Stream, deque[Flight]] = {}

    def launch(self, stream: Stream, token: int, task: Task, seconds: float) -> None:
        """Puts a task at the end of its stream's queue."""
        queue = self._queues.get(stream)
        if queue is None:
            queue = self._queues[stream] = deque()
        queue.append(Flight(token, task, seconds))

    def compute(self, task: Task, seconds: float, ledger: Ledger) -> None:
        """Runs a task on the compute stream; `seconds` is its time alone."""
        begun = self.now
        left = seconds
        while left > 0.0:
            if not self._queues:
                self.now += left
                break
            fronts = [queue[0] for queue in self._queues.values()]
            rates = self._rates(task, fronts)
            needed = left / rates.running
            step, first = self._next_end(fronts, rates)
            if needed <= step:
                step, first, left = needed, (first if needed == step else None), 0.0
            else:
                left -= step * rates.running
            self._progress(fronts, rates, step, first, ledger, task)
        ledger.ran(task, self.now - begun, seconds)

    def wait(self, token: int, ledger: Ledger) -> None:
        """Holds compute until everything launched under a token is done."""
        self._wait_for(lambda flight: flight.token == token, ledger)

    def wait_for_turn(self, task: Collective, ledger: Ledger) -> None:
        """Holds compute until all that its communicator was handed before is done.

        NCCL runs the collectives of one communicator in turn, whatever their streams.
        """
        communicator = task.communicator if self._queues else None
        if communicator is None:
            return
        self._wait_for(
            lambda flight: (
                isinstance(flight.task, Collective)
                and flight.task.communicator == communicator
            ),
            ledger,
        )

    def _wait_for(self, waited: Callable[[Flight], bool], ledger: Ledger) -> None:
        for stream, queue in list(self._queues.items()):
            while any(map(waited, queue)):
                self._stand_still(stream, ledger)

    def drain(self, ledger: Ledger) -> None:
        """Holds compute until everything is done.

        The wait is charged to the stream with the most work left: without contention,
        the one that ends last.
        """
        while self._queues:
            longest = max(
                self._queues, key=lambda s: sum(f.left for f in self._queues[s])
            )
            self._stand_still(longest, ledger)

    def state(self) -> State:
        """Everything that matters for what happens next, but not the clock."""
        queues = self._queues
        # In the order of the streams' definition, not of their first use.
        streams = Stream if len(queues) > 1 else queues
        return tuple(
            [
                (stream, flight.token, flight.task, flight.left)
                for stream in streams
                if stream in queues
                for flight in queues[stream]
            ]
        )

    def restore(self, state: State) -> None:
        """Puts the streams, but not the clock, into a state they were in before."""
        self._queues = {}
        for stream, token, task, left in state:
            self.launch(stream, token, task, left)

    def _stand_still(self, charged: Stream, ledger: Ledger) -> None:
        """Waits for the next end on any stream."""
        fronts = [queue[0] for queue in self._queues.values()]
        rates = self._rates(None, fronts)
        step, first = self._next_end(fronts, rates)
        ledger.stood_still(self._queues[charged][0].task, step)
        self._progress(fronts, rates, step, first, ledger, None)

    def _rates(self, running: Task | None, fronts: list[Flight]) -> Rates:
        return self._contention.rates(running, tuple([f.task for f in fronts]))

    @staticmethod
    def _next_end(fronts: list[Flight], rates: Rates) -> tuple[float, Flight | None]:
        """Time at which the first of the tasks under way ends, and that task."""
        first, step = None, float("inf")
        for flight, rate in zip(fronts, rates.flying, strict=True):
            needed = flight.left / rate
            if needed < step:
                first, step = flight, needed
        return step, first

    def _progress(
        self,
        fronts: list[Flight],
        rates: Rates,
        step: float,
        ended: Flight | None,
        ledger: Ledger,
        running: Task | None,
    ) -> None:
        self.now += step
        kernel = running if isinstance(running, Kernel) else None
        emptied = False
        for flight, rate in zip(fronts, rates.flying, strict=True):
            flight.left -= step * rate
            ledger.flew(flight.task, step, step * rate, kernel)
            # The one that was computed to end here has ended, whatever rounding says.
            emptied = emptied or flight is ended or flight.left <= 0.0
        if emptied:
            self._land(ended)

    def _land(self, ended: Flight | None) -> None:
        """Removes the tasks that are done, and streams that have nothing left."""
        for stream in list(self._queues):
            queue = self._queues[stream]
            while queue and (queue[0] is ended or queue[0].left <= 0.0):
                queue.popleft()
            if not queue:
                del self._queues[stream]
