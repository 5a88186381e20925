"""Replays a program with prices: who ran when, and what the compute stream waited for.

The rules are those of XLA's GPU runtime. Compute runs its tasks in order. A launched
task starts when compute has reached the launch and the task's stream is free. A wait
holds compute until the launched task is done. While tasks run at the same time each has
the speed that the contention model gives it. The time compute stands still is charged
to the tasks that occupied the stream of the task it stood still for, so the exposed
times of all tasks add up to the time compute lost.

A loop is replayed until its state at the end of an iteration (what is under way or
queued, and how much of it is left) has been seen before; from there on it is periodic,
and the remaining iterations are multiples of the period. With a state that never
repeats all iterations are replayed.
"""

from __future__ import annotations

import math
from collections import deque

from lagom_jax.cost.contention import Contention, NoContention
from lagom_jax.cost.ledger import Ledger
from lagom_jax.cost.prices import Price, Prices
from lagom_jax.cost.streams import State, Streams
from lagom_jax.cost.timeline import Timeline
from lagom_jax.hlo.collective import Collective
from lagom_jax.program.program import (
    Block,
    Branch,
    Kernel,
    Launch,
    Loop,
    Node,
    Program,
    Run,
    Task,
    Wait,
)

# States of a loop that are kept to find its period. A pipelined body has a period of
# one; unrolled by two and alternating buffers, of two.
REMEMBERED_STATES = 16
# What is left of a task is a difference of sums: below this share it is rounding.
_ROUNDING = 1e-9


def replay(
    program: Program, prices: Prices, contention: Contention | None = None
) -> Timeline:
    """Replays one step.

    Args:
        program: The step.
        prices: What each task costs alone.
        contention: What tasks do to each other; nothing by default.
    """
    machine = Machine(prices, contention)
    ledger = Ledger()
    for node in program.body:
        machine.node(node, ledger)
    machine.streams.drain(ledger)
    return Timeline(ledger.totals, ledger.tasks, machine.known)


def price_of(task: Task, prices: Prices) -> Price:
    """The price of any task."""
    if isinstance(task, Kernel):
        return prices.kernel(task)
    return prices.collective(task)


def same_state(one: State, other: State) -> bool:
    """True if two states differ by no more than rounding."""
    return len(one) == len(other) and all(
        a[0] is b[0]
        and a[1] == b[1]
        and a[2] is b[2]
        and math.isclose(a[3], b[3], rel_tol=_ROUNDING, abs_tol=1e-15)
        for a, b in zip(one, other, strict=True)
    )


class Machine:
    """Walks the nodes of a program."""

    def __init__(self, prices: Prices, contention: Contention | None = None) -> None:
        self.streams = Streams(contention or NoContention())
        self._prices = prices
        self.known: dict[Task, Price] = {}
        """The prices of the tasks that it has met; each is asked for once."""

    def seconds(self, task: Task) -> float:
        """A task's time alone."""
        price = self.known.get(task)
        if price is None:
            price = self.known[task] = price_of(task, self._prices)
        return price.seconds

    def node(self, node: Node, ledger: Ledger) -> None:
        """Carries one node out."""
        streams = self.streams
        if isinstance(node, Run):
            if isinstance(node.task, Collective):
                streams.wait_for_turn(node.task, ledger)
            streams.compute(node.task, self.seconds(node.task), ledger)
        elif isinstance(node, Launch):
            ledger.launched(node.task)
            seconds = self.seconds(node.task)
            streams.launch(node.stream, node.token, node.task, seconds)
        elif isinstance(node, Wait):
            for token in node.tokens:
                streams.wait(token, ledger)
        elif isinstance(node, Loop):
            ledger.add(self._loop(node, ledger))
        else:
            for inner in self.longest(node):
                self.node(inner, ledger)

    def _block(self, block: Block, ledger: Ledger) -> None:
        for node in block:
            self.node(node, ledger)

    def _repeated(self, period: int, rounds: int) -> None:
        """The last `period` iterations of a loop come again, so many times."""

    def longest(self, branch: Branch) -> Block:
        """The arm that would take longest: a step must be planned for it."""
        return max(branch.arms, key=self._alone)

    def _alone(self, block: Block) -> float:
        total = 0.0
        for node in block:
            if isinstance(node, Run | Launch):
                total += self.seconds(node.task)
            elif isinstance(node, Loop):
                total += node.trips * self._alone(node.body)
            elif isinstance(node, Branch):
                total += self._alone(self.longest(node))
        return total

    def _loop(self, loop: Loop, like: Ledger) -> Ledger:
        total = like.fresh()
        states: deque[State] = deque(maxlen=REMEMBERED_STATES)
        ledgers: deque[tuple[Ledger, float]] = deque(maxlen=REMEMBERED_STATES)
        trip = 0
        while trip < loop.trips:
            begun = self.streams.now
            ledger = like.fresh()
            self._block(loop.body, ledger)
            total.add(ledger)
            trip += 1
            state = self.streams.state()
            ledgers.append((ledger, self.streams.now - begun))
            period = period_of(states, state)
            states.append(state)
            if period:
                rounds = (loop.trips - trip) // period
                self._repeated(period, rounds)
                for earlier, seconds in list(ledgers)[-period:]:
                    total.add(earlier, rounds)
                    self.streams.now += seconds * rounds
                trip += rounds * period
                states.clear()
                ledgers.clear()
        return total


def period_of(states: deque[State], state: State) -> int:
    """After how many iterations a state came back; 0 if it was not seen before."""
    for back, earlier in enumerate(reversed(states), start=1):
        if same_state(earlier, state):
            return back
    return 0
