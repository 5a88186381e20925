"""Replays a program with prices: who ran when, and what the compute stream waited for.

The rules are those of XLA's GPU runtime. Compute runs its tasks in order. A launched
task starts when compute has reached the launch and the task's stream is free. A wait
holds compute until the launched task is done. The time compute stands still is charged
to the tasks that occupied the stream of the task it stood still for, so the exposed
times of all tasks add up to the time compute lost.

A loop is replayed until its state at the end of an iteration (how far every stream and
every launch still open is ahead of compute) has been seen before; from there on it is
periodic, and the remaining iterations are multiples of the period. With a state that
never repeats all iterations are replayed.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from typing import TypeAlias

from lagom_jax.cost.prices import Price, Prices
from lagom_jax.cost.timeline import TaskTime, Timeline
from lagom_jax.hlo.collective import Collective
from lagom_jax.schedule.program import (
    Block,
    Branch,
    Kernel,
    Launch,
    Loop,
    Program,
    Run,
    Stream,
    Task,
    Wait,
)

# States of a loop that are kept to find its period. A pipelined body has a period of
# one; unrolled by two and alternating buffers, of two.
_REMEMBERED_STATES = 16
_State: TypeAlias = tuple[tuple[str, float], ...]
# Clocks are sums of floats: differences below this share of a state are rounding.
_ROUNDING = 1e-9


def replay(program: Program, prices: Prices) -> Timeline:
    """Replays one step.

    Args:
        program: The step.
        prices: What each task costs alone.
    """
    machine = _Machine(_Priced(prices))
    ledger = machine.block(program.body)
    machine.finish(ledger)
    collectives = [f for t, f in ledger.tasks.items() if isinstance(t, Collective)]
    kernels = [(t, f) for t, f in ledger.tasks.items() if isinstance(t, Kernel)]
    return Timeline(
        step_seconds=machine.now,
        compute_seconds=math.fsum(f.compute_seconds for _, f in kernels),
        communication_seconds=math.fsum(f.seconds for f in collectives),
        exposed_seconds=math.fsum(f.exposed_seconds for f in collectives),
        waiting_seconds=math.fsum(f.exposed_seconds for _, f in kernels),
        tasks=ledger.tasks,
    )


class _Priced:
    """Remembers the seconds of every task that was asked for."""

    def __init__(self, prices: Prices) -> None:
        self._prices = prices
        self._known: dict[Task, float] = {}

    def seconds(self, task: Task) -> float:
        known = self._known.get(task)
        if known is None:
            known = self._known[task] = price_of(task, self._prices).seconds
        return known


def price_of(task: Task, prices: Prices) -> Price:
    """The price of any task."""
    if isinstance(task, Kernel):
        return prices.kernel(task)
    return prices.collective(task)


@dataclasses.dataclass(slots=True)
class _Open:
    """A launched task that compute has not yet run past."""

    task: Task
    stream: Stream
    start: float
    end: float


@dataclasses.dataclass(slots=True)
class _Ledger:
    """What happened in a stretch of the program."""

    tasks: dict[Task, TaskTime] = dataclasses.field(
        default_factory=dict[Task, TaskTime]
    )

    def of(self, task: Task) -> TaskTime:
        found = self.tasks.get(task)
        if found is None:
            found = self.tasks[task] = TaskTime()
        return found

    def add(self, other: _Ledger, times: float = 1) -> None:
        for task, figures in other.tasks.items():
            self.of(task).add(figures, times)


class _Machine:
    """The streams of one device, moved forward block by block."""

    def __init__(self, priced: _Priced) -> None:
        self.now = 0.0
        self._priced = priced
        self._free: dict[Stream, float] = {}
        self._done: dict[int, dict[Stream, float]] = {}
        self._open: deque[_Open] = deque()

    def block(self, block: Block) -> _Ledger:
        ledger = _Ledger()
        for node in block:
            if isinstance(node, Run):
                self._run(node.task, ledger)
            elif isinstance(node, Launch):
                self._launch(node, ledger)
            elif isinstance(node, Wait):
                self._wait(node, ledger)
            elif isinstance(node, Loop):
                ledger.add(self._loop(node))
            else:
                ledger.add(self.block(self._longest(node)))
        return ledger

    def finish(self, ledger: _Ledger) -> None:
        """The step ends when every stream has drained."""
        if self._free:
            stream, end = max(self._free.items(), key=lambda item: item[1])
            self._stall(end, stream, ledger)

    def _run(self, task: Task, ledger: _Ledger) -> None:
        seconds = self._priced.seconds(task)
        figures = ledger.of(task)
        figures.executions += 1
        figures.seconds += seconds
        end = self.now + seconds
        if isinstance(task, Kernel):
            figures.compute_seconds += seconds
            for other, overlap in self._overlaps(self.now, end):
                beside = ledger.of(other.task).beside
                beside[task] = beside.get(task, 0.0) + overlap
        else:
            figures.exposed_seconds += seconds
        self._advance(end)

    def _launch(self, node: Launch, ledger: _Ledger) -> None:
        seconds = self._priced.seconds(node.task)
        figures = ledger.of(node.task)
        figures.executions += 1
        figures.seconds += seconds
        start = max(self.now, self._free.get(node.stream, 0.0))
        end = start + seconds
        self._free[node.stream] = end
        self._done.setdefault(node.token, {})[node.stream] = end
        self._open.append(_Open(node.task, node.stream, start, end))

    def _wait(self, node: Wait, ledger: _Ledger) -> None:
        for token in node.tokens:
            # What ended in the past, or belongs to an iteration that never ran, holds
            # nobody up.
            for stream, end in self._done.get(token, {}).items():
                self._stall(end, stream, ledger)

    def _stall(self, until: float, stream: Stream, ledger: _Ledger) -> None:
        """Lets compute stand still for a stream that is busy without a gap."""
        if until <= self.now:
            return
        for other, overlap in self._overlaps(self.now, until):
            if other.stream is stream:
                ledger.of(other.task).exposed_seconds += overlap
        self._advance(until)

    def _overlaps(self, start: float, end: float) -> list[tuple[_Open, float]]:
        found: list[tuple[_Open, float]] = []
        for other in self._open:
            overlap = min(end, other.end) - max(start, other.start)
            if overlap > 0:
                found.append((other, overlap))
        return found

    def _advance(self, until: float) -> None:
        self.now = until
        opened = self._open
        if opened and any(other.end <= until for other in opened):
            self._open = deque(other for other in opened if other.end > until)

    def _longest(self, branch: Branch) -> Block:
        """The arm that would take longest: a step must be planned for it."""
        return max(branch.arms, key=self._alone)

    def _alone(self, block: Block) -> float:
        total = 0.0
        for node in block:
            if isinstance(node, Run | Launch):
                total += self._priced.seconds(node.task)
            elif isinstance(node, Loop):
                total += node.trips * self._alone(node.body)
            elif isinstance(node, Branch):
                total += self._alone(self._longest(node))
        return total

    def _loop(self, loop: Loop) -> _Ledger:
        total = _Ledger()
        states: deque[_State] = deque(maxlen=_REMEMBERED_STATES)
        ledgers: deque[tuple[_Ledger, float]] = deque(maxlen=_REMEMBERED_STATES)
        trip = 0
        while trip < loop.trips:
            before = self.now
            ledger = self.block(loop.body)
            total.add(ledger)
            trip += 1
            state = self._state()
            ledgers.append((ledger, self.now - before))
            period = _period(states, state)
            states.append(state)
            if period:
                trip += self._skip(loop.trips - trip, period, ledgers, total)
                states.clear()
                ledgers.clear()
        return total

    def _skip(
        self,
        left: int,
        period: int,
        ledgers: deque[tuple[_Ledger, float]],
        total: _Ledger,
    ) -> int:
        """Adds as many whole periods as are left and returns the iterations."""
        rounds = left // period
        if not rounds:
            return 0
        elapsed = 0.0
        for ledger, seconds in list(ledgers)[-period:]:
            total.add(ledger, rounds)
            elapsed += seconds * rounds
        self._shift(elapsed)
        return rounds * period

    def _state(self) -> _State:
        """How far everything that is still busy is ahead of compute."""
        now = self.now
        self._done = {
            token: busy
            for token, ends in self._done.items()
            if (busy := {s: end for s, end in ends.items() if end > now})
        }
        self._free = {s: end for s, end in self._free.items() if end > now}
        streams = [(s.name, end - now) for s, end in self._free.items()]
        launches = [
            (f"{token} {s.name}", end - now)
            for token, ends in self._done.items()
            for s, end in ends.items()
        ]
        return tuple(sorted(streams + launches))

    def _shift(self, seconds: float) -> None:
        """Moves the whole machine forward in time, as it is."""
        self.now += seconds
        self._free = {s: t + seconds for s, t in self._free.items()}
        self._done = {
            token: {s: end + seconds for s, end in ends.items()}
            for token, ends in self._done.items()
        }
        self._open = deque(
            _Open(o.task, o.stream, o.start + seconds, o.end + seconds)
            for o in self._open
        )


def _period(states: deque[_State], state: _State) -> int:
    """After how many iterations a state came back; 0 if it was not seen before."""
    for back, earlier in enumerate(reversed(states), start=1):
        if len(earlier) == len(state) and all(
            a[0] == b[0] and math.isclose(a[1], b[1], rel_tol=_ROUNDING)
            for a, b in zip(earlier, state, strict=True)
        ):
            return back
    return 0
