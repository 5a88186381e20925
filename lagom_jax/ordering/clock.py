"""What the units of a computation do to the clock: a replay that keeps no books.

A search replays a computation a hundred thousand times and looks at nothing but the
end. The rules are those of `lagom_jax.cost.streams`, with numbers for tasks and loads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeAlias

from lagom_jax.cost.ledger import Ledger
from lagom_jax.cost.replay import Machine
from lagom_jax.ordering.terms import NOTHING, Terms
from lagom_jax.schedule.program import (
    Block,
    Branch,
    Kernel,
    Launch,
    Loop,
    Node,
    Run,
    Stream,
    Task,
    Wait,
    nodes_in,
)

Flying: TypeAlias = tuple[tuple[tuple[float, int, int], ...], ...]
"""By stream what is under way or queued: the work it has left, its task's number, and
its token. Nothing at all where all streams are idle."""


@dataclasses.dataclass(slots=True)
class _Flight:
    """What was launched and is not done."""

    left: float
    task: int
    token: int


class Clock:
    """The streams beside the compute stream while the units of a computation run."""

    def __init__(self, blocks: Sequence[Block], terms: Terms) -> None:
        """Prepares for units.

        Args:
            blocks: What each does, without branches.
            terms: What tasks cost and take, whenever something runs; what is inside
                loops stays as it is.
        """
        self.now = 0.0
        self._terms = terms
        self._streams = _streams_of(blocks)
        self._queues: list[list[_Flight]] = [[] for _ in self._streams]
        self._machine = Machine(terms, terms)
        self._machine.known = terms.known
        self._task_of: dict[int, Task] = {}
        self._loops: dict[Loop, tuple[float, Flying]] = {}
        self._deeds = [tuple(map(self._deed, block)) for block in blocks]

    def run(self, number: int) -> None:
        """Carries out a unit."""
        for deed in self._deeds[number]:
            deed()

    def drain(self) -> None:
        """Holds compute until everything is done."""
        while busy := [queue for queue in self._queues if queue]:
            self._stand_still(busy)

    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not any(self._queues)

    def state(self) -> Flying:
        """Everything that matters for what happens next, but not the time."""
        if not any(self._queues):
            return ()
        return tuple(
            tuple([(flight.left, flight.task, flight.token) for flight in queue])
            for queue in self._queues
        )

    def restore(self, state: Flying, now: float) -> None:
        """Puts streams and time to where they were before."""
        self.now = now
        for place, queue in enumerate(self._queues):
            queue[:] = [_Flight(*flight) for flight in state[place]] if state else ()

    def _deed(self, node: Node) -> Callable[[], None]:
        terms = self._terms
        if isinstance(node, Run):
            number = terms.number(node.task)
            if isinstance(node.task, Kernel):
                load = terms.kernel_load(node.task)
                return partial(self._compute, load, terms.seconds[number])
            return partial(self._communicate, number)
        if isinstance(node, Launch):
            number = terms.number(node.task)
            self._task_of[number] = node.task
            queue = self._queues[self._streams.index(node.stream)]
            return partial(self._launch, queue, number, node.token)
        if isinstance(node, Wait):
            return partial(self._wait, node.tokens)
        assert not isinstance(node, Branch), "branches have been decided"
        for inner in nodes_in((node,)):
            if isinstance(inner, Launch):
                self._task_of[terms.number(inner.task)] = inner.task
        return partial(self._loop, node)

    def _launch(self, queue: list[_Flight], number: int, token: int) -> None:
        queue.append(_Flight(self._terms.seconds[number], number, token))

    def _communicate(self, number: int) -> None:
        self._compute(NOTHING, self._terms.seconds[number])

    def _compute(self, own: int, left: float) -> None:
        terms = self._terms
        while left > 0.0:
            busy = [queue for queue in self._queues if queue]
            if not busy:
                self.now += left
                return
            if len(busy) > 1:
                left = self._compute_beside(own, left, busy)
                continue
            # What happens nearly always, and so without a call.
            queue = busy[0]
            flight = queue[0]
            key = own, terms.loads[flight.task]
            rates = terms.speeds.get(key)
            if rates is None:
                rates = terms.between(key)
            kernel, flying = rates
            needed, step = left / kernel, flight.left / flying
            if needed < step:
                self.now += needed
                flight.left -= needed * flying
                if flight.left <= 0.0:
                    _land(queue)
                return
            self.now += step
            left = 0.0 if needed == step else left - step * kernel
            flight.left = 0.0
            _land(queue)

    def _compute_beside(
        self, own: int, left: float, busy: list[list[_Flight]]
    ) -> float:
        """Runs a kernel until something ends; what is left of it."""
        kernel, *flying = self._rates(own, busy)
        needed, step = left / kernel, _next_end(busy, flying)
        left = 0.0 if needed <= step else left - step * kernel
        self._progress(busy, flying, min(needed, step), ends=step <= needed)
        return left

    def _wait(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            for queue in self._queues:
                while any(flight.token == token for flight in queue):
                    self._stand_still([queue for queue in self._queues if queue])

    def _stand_still(self, busy: list[list[_Flight]]) -> None:
        """Waits for the next end on any stream."""
        _, *flying = self._rates(NOTHING, busy)
        self._progress(busy, flying, _next_end(busy, flying), ends=True)

    def _rates(self, own: int, busy: list[list[_Flight]]) -> tuple[float, ...]:
        loads = self._terms.loads
        key = (own, *[loads[queue[0].task] for queue in busy])
        return self._terms.speeds.get(key) or self._terms.between(key)

    def _progress(
        self,
        busy: list[list[_Flight]],
        flying: list[float],
        step: float,
        *,
        ends: bool,
    ) -> None:
        self.now += step
        for queue, rate in zip(busy, flying, strict=True):
            flight = queue[0]
            # The one that was computed to end here has ended, whatever rounding says.
            ended = ends and flight.left / rate <= step
            flight.left = 0.0 if ended else flight.left - step * rate
            if flight.left <= 0.0:
                _land(queue)

    def _loop(self, loop: Loop) -> None:
        idle = self.is_idle()
        known = self._loops.get(loop) if idle else None
        if known is not None:
            self.restore(known[1], self.now + known[0])
            return
        begun, streams = self.now, self._machine.streams
        streams.now = begun
        streams.restore(
            tuple(
                (stream, flight.token, self._task_of[flight.task], flight.left)
                for stream, queue in zip(self._streams, self._queues, strict=True)
                for flight in queue
            )
        )
        self._machine.node(loop, Ledger(detailed=False))
        left_over: dict[Stream, list[tuple[float, int, int]]] = {}
        for stream, token, task, left in streams.state():
            flight = left, self._terms.number(task), token
            left_over.setdefault(stream, []).append(flight)
        state = tuple(tuple(left_over.get(stream, ())) for stream in self._streams)
        self.restore(state, streams.now)
        if idle:
            self._loops[loop] = self.now - begun, state


def _streams_of(blocks: Iterable[Block]) -> list[Stream]:
    """The streams that anything is launched on, in the order of their definition."""
    nodes = (node for block in blocks for node in nodes_in(block))
    used = {node.stream for node in nodes if isinstance(node, Launch)}
    return [stream for stream in Stream if stream in used]


def _land(queue: list[_Flight]) -> None:
    while queue and queue[0].left <= 0.0:
        del queue[0]


def _next_end(busy: list[list[_Flight]], flying: list[float]) -> float:
    return min(q[0].left / rate for q, rate in zip(busy, flying, strict=True))
