"""Clock of a computation's units: a replay that keeps totals only.

A search replays a computation a hundred thousand times and looks at nothing but the
end. The rules are those of `lagom_jax.cost.streams`, with numbers for tasks and loads.

Times are multiples of 2^-46 s (14 fs), so that sums of them are exact, in any order
and from any beginning: a stretch that is replayed from the same state takes the same
time to the last bit, wherever it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, TypeAlias

from lagom_jax.cost.ledger import Ledger
from lagom_jax.cost.replay import Machine
from lagom_jax.order.terms import NOTHING, Terms
from lagom_jax.program.program import (
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

Transfer: TypeAlias = tuple[int, int]
"""Something launched that is not done: its task's number, and its token."""
StreamStates: TypeAlias = tuple[tuple[float, tuple[Transfer, ...]], ...]
"""By stream the work that its first transfer has left, and its transfers in their turn.
Empty where all streams are idle."""

# Doubles from 64 to 128 are multiples of 2^-46: added and taken away again, this rounds
# any time below 32 s to one. Sums stay exact up to 128 s; beyond, they are rounded.
_SNAP: Final = 96.0


def snapped(seconds: float) -> float:
    """A time as the multiple of 2^-46 s that is nearest.

    Example:
        >>> snapped(0.25), snapped(1e-15)
        (0.25, 0.0)
        >>> 0.1 + 0.2 == 0.3, snapped(0.1) + snapped(0.2) == snapped(0.3)
        (False, True)
    """
    return (seconds + _SNAP) - _SNAP


class Clock:
    """The streams beside the compute stream while the units of a computation run."""

    def __init__(self, blocks: Sequence[Block], terms: Terms) -> None:
        """Prepares for units.

        Args:
            blocks: The nodes of each, without branches.
            terms: The costs of tasks, asked for whenever something runs; what is inside
                loops stays as it is.
        """
        self.now = 0.0
        self._terms = terms
        self._streams = _streams_of(blocks)
        self._queues: list[list[Transfer]] = [[] for _ in self._streams]
        self._left = [0.0 for _ in self._streams]
        self._machine = Machine(terms, terms)
        self._machine.known = terms.known
        self._task_of: dict[int, Task] = {}
        self._loops: dict[Loop, tuple[float, StreamStates]] = {}
        alone = len(self._streams) == 1
        self._run_kernel = self._compute_beside_one if alone else self._compute
        self._run_wait = self._wait_for_one if alone else self._wait
        actions = [tuple(map(self._action, block)) for block in blocks]
        self.actions = [
            of_unit[0] if len(of_unit) == 1 else partial(_in_turn, of_unit)
            for of_unit in actions
        ]
        """By unit: carries it out."""

    def drain(self) -> None:
        """Holds compute until everything is done."""
        while any(self._queues):
            self._stand_still()

    def is_idle(self) -> bool:
        """True if nothing is under way."""
        return not any(self._queues)

    def state(self) -> StreamStates:
        """Everything that matters for what happens next, but not the time."""
        if not any(self._queues):
            return ()
        return tuple(
            [
                (left, tuple(queue)) if queue else (0.0, ())
                for left, queue in zip(self._left, self._queues, strict=True)
            ]
        )

    def is_in(self, state: StreamStates) -> bool:
        """True if the streams are in a state, to the last bit."""
        if not state:
            return not any(self._queues)
        for place, queue in enumerate(self._queues):
            left, transfers = state[place]
            if len(queue) != len(transfers):
                return False
            if queue and (
                self._left[place] != left
                or queue[0] != transfers[0]
                or tuple(queue) != transfers
            ):
                return False
        return True

    def has_any(self, tasks: frozenset[int]) -> bool:
        """True if one of some tasks is under way, or queued."""
        return any(task in tasks for queue in self._queues for task, _ in queue)

    def restore(self, state: StreamStates, now: float) -> None:
        """Puts streams and time to where they were before."""
        self.now = now
        for place, queue in enumerate(self._queues):
            if state:
                self._left[place], queue[:] = state[place]
            else:
                queue.clear()

    def _action(self, node: Node) -> Callable[[], None]:
        terms = self._terms
        if isinstance(node, Run):
            number = terms.number(node.task)
            if isinstance(node.task, Kernel):
                load = terms.kernel_load(node.task)
                return partial(self._run_kernel, load, terms.seconds[number])
            return partial(self._communicate, number)
        if isinstance(node, Launch):
            number = terms.number(node.task)
            self._task_of[number] = node.task
            stream = self._streams.index(node.stream)
            return partial(self._launch, stream, (number, node.token))
        if isinstance(node, Wait):
            return partial(self._run_wait, node.tokens)
        assert not isinstance(node, Branch), "branches have been decided"
        for inner in nodes_in((node,)):
            if isinstance(inner, Launch):
                self._task_of[terms.number(inner.task)] = inner.task
        return partial(self._loop, node)

    def _launch(self, stream: int, transfer: Transfer) -> None:
        queue = self._queues[stream]
        queue.append(transfer)
        if len(queue) == 1:
            self._begin(stream)

    def _begin(self, stream: int) -> None:
        """Begins what is first in a queue; what has nothing to do is done."""
        queue, seconds = self._queues[stream], self._terms.seconds
        while queue:
            self._left[stream] = seconds[queue[0][0]]
            if self._left[stream] > 0.0:
                return
            del queue[0]

    def _end(self, stream: int) -> None:
        del self._queues[stream][0]
        self._begin(stream)

    def _communicate(self, number: int) -> None:
        self._run_kernel(NOTHING, self._terms.seconds[number])

    def _compute_beside_one(self, own: int, left: float) -> None:
        """Runs a kernel where there is a single other stream."""
        (queue,) = self._queues
        while queue and left > 0.0:
            terms = self._terms
            key = own, terms.loads[queue[0][0]]
            kernel, flying = terms.speeds.get(key) or terms.between(key)
            flight = self._left[0]
            needed, step = left / kernel, flight / flying
            if needed < step:
                self.now += (needed + _SNAP) - _SNAP
                flight -= needed * flying
                if flight > 0.0:
                    self._left[0] = flight
                else:
                    self._end(0)
                return
            self.now += (step + _SNAP) - _SNAP
            left = 0.0 if needed == step else left - step * kernel
            self._end(0)
        if left > 0.0:
            self.now += (left + _SNAP) - _SNAP

    def _wait_for_one(self, tokens: Iterable[int]) -> None:
        """Waits where there is a single other stream."""
        (queue,) = self._queues
        terms = self._terms
        for token in tokens:
            behind = len(queue)
            for place, (_, other) in enumerate(queue, 1):
                if other == token:
                    behind = len(queue) - place
            while len(queue) > behind:
                key = NOTHING, terms.loads[queue[0][0]]
                _, flying = terms.speeds.get(key) or terms.between(key)
                self.now += (self._left[0] / flying + _SNAP) - _SNAP
                self._end(0)

    def _compute(self, own: int, left: float) -> None:
        while left > 0.0:
            busy = [place for place, queue in enumerate(self._queues) if queue]
            if not busy:
                self.now += snapped(left)
                return
            kernel, *flying = self._rates(own, busy)
            needed, step = left / kernel, self._next_end(busy, flying)
            left = 0.0 if needed <= step else left - step * kernel
            self._progress(busy, flying, min(needed, step), ends=step <= needed)

    def _wait(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            for queue in self._queues:
                while any(token == other for _, other in queue):
                    self._stand_still()

    def _stand_still(self) -> None:
        """Waits for the next end on any stream."""
        busy = [place for place, queue in enumerate(self._queues) if queue]
        _, *flying = self._rates(NOTHING, busy)
        self._progress(busy, flying, self._next_end(busy, flying), ends=True)

    def _rates(self, own: int, busy: list[int]) -> tuple[float, ...]:
        loads, queues = self._terms.loads, self._queues
        key = (own, *[loads[queues[place][0][0]] for place in busy])
        return self._terms.speeds.get(key) or self._terms.between(key)

    def _next_end(self, busy: list[int], flying: list[float]) -> float:
        left = self._left
        return min(
            [left[place] / rate for place, rate in zip(busy, flying, strict=True)]
        )

    def _progress(
        self, busy: list[int], flying: list[float], step: float, *, ends: bool
    ) -> None:
        self.now += snapped(step)
        for place, rate in zip(busy, flying, strict=True):
            left = self._left[place]
            # The one that was computed to end here has ended, whatever rounding says.
            ended = ends and left / rate <= step
            left = 0.0 if ended else left - step * rate
            if left > 0.0:
                self._left[place] = left
            else:
                self._end(place)

    def _loop(self, loop: Loop) -> None:
        idle = self.is_idle()
        known = self._loops.get(loop) if idle else None
        if known is None:
            known = self._replayed(loop)
            if idle:
                self._loops[loop] = known
        self.restore(known[1], self.now + known[0])

    def _replayed(self, loop: Loop) -> tuple[float, StreamStates]:
        """Seconds of a loop from the present state, and the state at its end."""
        seconds, streams = self._terms.seconds, self._machine.streams
        streams.now = 0.0
        streams.restore(
            tuple(
                (
                    *(stream, token, self._task_of[task]),
                    seconds[task] if number else self._left[place],
                )
                for place, stream in enumerate(self._streams)
                for number, (task, token) in enumerate(self._queues[place])
            )
        )
        self._machine.node(loop, Ledger(detailed=False))
        left: dict[Stream, float] = {}
        queues: dict[Stream, list[Transfer]] = {}
        for stream, token, task, remaining in streams.state():
            left.setdefault(stream, remaining)
            queues.setdefault(stream, []).append((self._terms.number(task), token))
        state = tuple(
            (left.get(stream, 0.0), tuple(queues.get(stream, ())))
            for stream in self._streams
        )
        return snapped(streams.now), state if queues else ()


def _in_turn(actions: Iterable[Callable[[], None]]) -> None:
    for action in actions:
        action()


def _streams_of(blocks: Iterable[Block]) -> list[Stream]:
    """The streams that anything is launched on, in the order of their definition."""
    nodes = (node for block in blocks for node in nodes_in(block))
    used = {node.stream for node in nodes if isinstance(node, Launch)}
    return [stream for stream in Stream if stream in used]
