"""Clock of a computation's units: a replay that keeps totals only.

A search replays a computation a hundred thousand times and looks at nothing but the
end. The rules are those of `lagom_jax.cost.streams`, with numbers for tasks and loads.
What a unit does is a function of the time and of the state of the streams, and states
are values: who keeps one can go on from it, and whether two are equal is cheap to say.

Times are multiples of 2^-46 s (14 fs), so that sums of them are exact, in any order
and from any beginning: a stretch that is replayed from the same state takes the same
time to the last bit, wherever it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

from lagom_jax.cost.ledger import Ledger
from lagom_jax.cost.rates_of_loads import NOTHING
from lagom_jax.cost.replay import Machine
from lagom_jax.hlo.collective import Collective
from lagom_jax.order.terms import Terms
from lagom_jax.order.transfers import Transfer, TransferQueues
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

StreamStates: TypeAlias = tuple[TransferQueues, *tuple[float, ...]]
"""Transfers under way and queued; then, for each stream that has something to do, the
work that its first transfer has left. Everything that matters for what happens next,
but not the time."""
Action: TypeAlias = Callable[[float, StreamStates], tuple[float, StreamStates]]
"""From the time and the streams before to those after."""

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
        self._terms = terms
        # The very lists that change when something is set.
        self._seconds, self._loads, self._speeds = (
            terms.seconds,
            terms.loads,
            terms.speeds,
        )
        self._streams = _streams_of(blocks)
        self.idle: StreamStates = (TransferQueues.empty(len(self._streams)),)
        """All streams have nothing to do."""
        self._machine = Machine(terms, terms)
        self._machine.known = terms.known
        self._task_of: dict[int, Task] = {}
        self._loops: dict[Loop, tuple[float, StreamStates]] = {}
        self._launched_of: dict[bytes, frozenset[int]] = {}
        actions = [tuple(map(self._action, block)) for block in blocks]
        self.actions = [
            of_unit[0] if len(of_unit) == 1 else _in_turn(of_unit)
            for of_unit in actions
        ]
        """By unit: what it does."""

    def drain(self, now: float, state: StreamStates) -> float:
        """The time at which everything is done, if compute does nothing more."""
        while len(state) > 1:
            now, state = self._stand_still(now, state)
        return now

    def _action(self, node: Node) -> Action:
        terms = self._terms
        if isinstance(node, Run):
            number = terms.number(node.task)
            if isinstance(node.task, Kernel):
                load = terms.kernel_load(node.task)
                return self._kernel(load, terms.seconds[number])
            return self._collective(node.task)
        if isinstance(node, Launch):
            number = terms.number(node.task)
            self._task_of[number] = node.task
            stream = self._streams.index(node.stream)
            return self._launch(stream, (number, node.token))
        if isinstance(node, Wait):
            return self._wait(node.tokens)
        assert not isinstance(node, Branch), "branches have been decided"
        for inner in nodes_in((node,)):
            if isinstance(inner, Launch):
                self._task_of[terms.number(inner.task)] = inner.task
        return self._loop(node)

    def _kernel(self, own: int, seconds: float) -> Action:
        loads, speeds, between = self._loads, self._speeds, self._terms.between
        alone, compute = snapped(seconds), self._compute

        def run(now: float, state: StreamStates) -> tuple[float, StreamStates]:
            # What follows but the last line is that line where nothing ends meanwhile.
            if len(state) == 1:
                return now + alone, state
            if len(state) == 2:
                queues, left = state
                key = own, loads[queues.first[0]]
                kernel, flying = speeds.get(key) or between(key)
                needed = seconds / kernel
                after = left - needed * flying
                if needed < left / flying and after > 0.0:
                    return now + ((needed + _SNAP) - _SNAP), (queues, after)
            elif len(state) == 3:
                queues, left, other = state
                first, second = queues.first
                pair = own, loads[first], loads[second]
                kernel, flying, beside = speeds.get(pair) or between(pair)
                needed = seconds / kernel
                after, behind = left - needed * flying, other - needed * beside
                if (
                    needed < left / flying
                    and needed < other / beside
                    and after > 0.0
                    and behind > 0.0
                ):
                    return now + ((needed + _SNAP) - _SNAP), (queues, after, behind)
            return compute(own, seconds, now, state)

        return run

    def _collective(self, task: Collective) -> Action:
        seconds, loads, compute = self._seconds, self._loads, self._compute
        number, communicator = self._terms.number(task), task.communicator

        def run(now: float, state: StreamStates) -> tuple[float, StreamStates]:
            if communicator is not None and len(state) > 1:
                before = self._of_communicator(communicator)
                while state[0].has_any(before):
                    now, state = self._stand_still(now, state)
            return compute(loads[number], seconds[number], now, state)

        return run

    def _of_communicator(self, communicator: bytes) -> frozenset[int]:
        """Launched collectives of a communicator, which NCCL runs in turn."""
        found = self._launched_of.get(communicator)
        if found is None:
            found = self._launched_of[communicator] = frozenset(
                number
                for number, task in self._task_of.items()
                if isinstance(task, Collective) and task.communicator == communicator
            )
        return found

    def _launch(self, stream: int, transfer: Transfer) -> Action:
        seconds, (number, _) = self._seconds, transfer

        def launch(now: float, state: StreamStates) -> tuple[float, StreamStates]:
            before, *lefts = state
            queues = before.launched(stream, transfer)
            if len(queues.busy) > len(lefts):
                left = seconds[number]
                if left <= 0.0:
                    return now, state
                lefts.insert(queues.busy.index(stream), left)
            return now, (queues, *lefts)

        return launch

    def _wait(self, tokens: tuple[int, ...]) -> Action:
        stand_still = self._stand_still

        def wait(now: float, state: StreamStates) -> tuple[float, StreamStates]:
            while not state[0].tokens.isdisjoint(tokens):
                now, state = stand_still(now, state)
            return now, state

        return wait

    def _loop(self, loop: Loop) -> Action:
        known = self._loops

        def run(now: float, state: StreamStates) -> tuple[float, StreamStates]:
            found = known.get(loop) if len(state) == 1 else None
            if found is None:
                found = self._replayed(loop, state)
                if len(state) == 1:
                    known[loop] = found
            return now + found[0], found[1]

        return run

    def _compute(
        self, own: int, left: float, now: float, state: StreamStates
    ) -> tuple[float, StreamStates]:
        """Does work on the compute stream."""
        while left > 0.0:
            if len(state) == 1:
                return now + snapped(left), state
            if len(state) == 2:
                queues, flight = state
                kernel, rate = self._rates(own, queues)
                needed, step = left / kernel, flight / rate
                if needed < step and flight - needed * rate > 0.0:
                    return now + snapped(needed), (queues, flight - needed * rate)
                now += snapped(min(needed, step))
                left = 0.0 if needed <= step else left - step * kernel
                state = self._after_first(queues)
                continue
            kernel, *flying = self._rates(own, state[0])
            ends = _ends(state, flying)
            needed, step = left / kernel, min(ends)
            if needed < step:
                return self._progress(now, state, flying, needed, None)
            left = 0.0 if needed == step else left - step * kernel
            now, state = self._progress(now, state, flying, step, ends)
        return now, state

    def _stand_still(
        self, now: float, state: StreamStates
    ) -> tuple[float, StreamStates]:
        """Waits for the next end on any stream."""
        if len(state) == 2:
            queues, left = state
            _, rate = self._rates(NOTHING, queues)
            return now + snapped(left / rate), self._after_first(queues)
        _, *flying = self._rates(NOTHING, state[0])
        ends = _ends(state, flying)
        return self._progress(now, state, flying, min(ends), ends)

    def _rates(self, own: int, queues: TransferQueues) -> tuple[float, ...]:
        loads = self._loads
        key = (own, *[loads[task] for task in queues.first])
        return self._speeds.get(key) or self._terms.between(key)

    def _progress(
        self,
        now: float,
        state: StreamStates,
        flying: Sequence[float],
        step: float,
        ends: Sequence[float] | None,
    ) -> tuple[float, StreamStates]:
        """Goes on by a step.

        Args:
            now: The time before.
            state: The streams before.
            flying: The speed of each transfer that is under way.
            step: Seconds.
            ends: Seconds until each is done, where the step goes to the first of these.
        """
        queues, *lefts = state
        for place in range(len(lefts) - 1, -1, -1):
            # The one that was computed to end here has ended, whatever rounding says.
            ended = ends is not None and ends[place] <= step
            left = 0.0 if ended else lefts[place] - step * flying[place]
            if left > 0.0:
                lefts[place] = left
            else:
                queues = self._end(queues, lefts, place)
        return now + snapped(step), (queues, *lefts)

    def _after_first(self, queues: TransferQueues) -> StreamStates:
        """The streams when what is first on the only busy one has ended."""
        left = [0.0]
        after = self._end(queues, left, 0)
        return (after, *left)

    def _end(
        self, queues: TransferQueues, lefts: list[float], place: int
    ) -> TransferQueues:
        """Ends what is first on a stream; what comes then begins, or has no work.

        Args:
            queues: What is under way and queued.
            lefts: Work that is left, of each stream that has some; changed.
            place: Of these streams, the one.
        """
        busy = len(lefts)
        while True:
            queues = queues.ended(place)
            if len(queues.busy) < busy:
                del lefts[place]
                return queues
            left = self._seconds[queues.first[place]]
            if left > 0.0:
                lefts[place] = left
                return queues

    def _replayed(self, loop: Loop, state: StreamStates) -> tuple[float, StreamStates]:
        """Seconds of a loop from a state, and the state at its end."""
        seconds, streams = self._terms.seconds, self._machine.streams
        queues, *lefts = state
        streams.now = 0.0
        streams.restore(
            tuple(
                (
                    *(self._streams[stream], token, self._task_of[task]),
                    seconds[task] if number else left,
                )
                for stream, left in zip(queues.busy, lefts, strict=True)
                for number, (task, token) in enumerate(queues.queues[stream])
            )
        )
        self._machine.node(loop, Ledger(detailed=False))
        after, begun = self.idle[0], dict[int, float]()
        for stream, token, task, remaining in streams.state():
            number = self._streams.index(stream)
            begun.setdefault(number, remaining)
            after = after.launched(number, (self._terms.number(task), token))
        return snapped(streams.now), (after, *[begun[one] for one in after.busy])


def _ends(state: StreamStates, flying: Sequence[float]) -> list[float]:
    """Seconds until each transfer that is under way would be done at its speed."""
    _, *lefts = state
    return [left / rate for left, rate in zip(lefts, flying, strict=True)]


def _in_turn(actions: Sequence[Action]) -> Action:
    def run(now: float, state: StreamStates) -> tuple[float, StreamStates]:
        for action in actions:
            now, state = action(now, state)
        return now, state

    return run


def _streams_of(blocks: Iterable[Block]) -> list[Stream]:
    """The streams that anything is launched on, in the order of their definition."""
    nodes = (node for block in blocks for node in nodes_in(block))
    used = {node.stream for node in nodes if isinstance(node, Launch)}
    return [stream for stream in Stream if stream in used]
