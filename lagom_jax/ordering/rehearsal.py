"""How long a computation takes in one order or another.

The computation is replayed as a step of its own. A move changes a stretch of the order,
so a replay begins there, from the state that the streams were in, and ends where, as
in the order before, nothing is under way: what follows takes as long as it did.
"""

from __future__ import annotations

from lagom_jax.cost.ledger import Ledger
from lagom_jax.cost.replay import Machine
from lagom_jax.cost.streams import State
from lagom_jax.ordering.sequence import Order, UnitSequence
from lagom_jax.ordering.terms import Terms
from lagom_jax.schedule.program import Block, Branch, Kernel, Launch, Loop, Run, Task


class Rehearsal:
    """Replays of one computation.

    Times are compared with a reference: the last order that was `kept`.
    """

    def __init__(self, sequence: UnitSequence, terms: Terms) -> None:
        """Prepares for a computation.

        Args:
            sequence: Its units, without branches among their nodes.
            terms: What its tasks cost; changed by the search, not here.
        """
        self.terms = terms
        self.evaluations = 0
        """Orders that were replayed, wholly or in part."""
        self._nodes = [unit.nodes for unit in sequence.units]
        self._machine = Machine(terms, terms)
        self._machine.known = terms.known
        self._ledger = _NoLedger()
        self._loops: dict[Loop, tuple[float, State]] = {}
        self.alone = [self._alone(nodes) for nodes in self._nodes]
        """Seconds that each unit computes at least; of a loop, that it takes."""
        self._states: list[State] = []
        self._times: list[float] = []
        self.seconds = 0.0
        """Of the reference."""

    def task_seconds(self, task: Task) -> float:
        """What a task takes alone."""
        return self._machine.seconds(task)

    def keep(self, order: Order, first: int = 0) -> float:
        """Makes an order the reference, and says how long it takes.

        Args:
            order: The order.
            first: The first place where it, or the setting of what is launched there,
                differs from the reference before.
        """
        streams = self._machine.streams
        del self._states[first + 1 :], self._times[first + 1 :]
        if self._states:
            streams.restore(self._states[first])
            streams.now = self._times[first]
        else:
            streams.restore(())
            streams.now = 0.0
            self._states, self._times = [()], [0.0]
        for number in order[first:]:
            self._run(self._nodes[number])
            self._states.append(streams.state())
            self._times.append(streams.now)
        streams.drain(self._ledger)
        self.seconds = streams.now
        return self.seconds

    def try_(self, order: Order, first: int, last: int, limit: float) -> float:
        """How long an order takes; infinite if that is not below a limit.

        Args:
            order: The order.
            first: The first place where it, or the setting of what is launched there,
                differs from the reference.
            last: The last such place.
            limit: What takes as long as this is of no interest.
        """
        self.evaluations += 1
        streams, nodes, alone = self._machine.streams, self._nodes, self.alone
        streams.restore(self._states[first])
        streams.now = self._times[first]
        # Whatever follows takes its time alone at least.
        bound = self._times[first] + sum([alone[number] for number in order[first:]])
        states, times = self._states, self._times
        for place in range(first, len(order)):
            number = order[place]
            inside = nodes[number]
            if inside:
                before = streams.now
                self._run(inside)
                bound += streams.now - before - alone[number]
                if bound >= limit:
                    return float("inf")
            if place >= last and not states[place + 1] and not streams.state():
                ended = streams.now + self.seconds - times[place + 1]
                return ended if ended < limit else float("inf")
        streams.drain(self._ledger)
        return streams.now if streams.now < limit else float("inf")

    def _run(self, block: Block) -> None:
        machine, streams = self._machine, self._machine.streams
        for node in block:
            if isinstance(node, Loop) and not streams.state():
                known = self._loops.get(node)
                if known is None:
                    begun = streams.now
                    machine.node(node, self._ledger)
                    known = streams.now - begun, streams.state()
                    self._loops[node] = known
                else:
                    streams.now += known[0]
                    streams.restore(known[1])
            else:
                machine.node(node, self._ledger)

    def _alone(self, block: Block) -> float:
        total = 0.0
        for node in block:
            if isinstance(node, Run) and isinstance(node.task, Kernel):
                total += self._machine.seconds(node.task)
            elif isinstance(node, Loop):
                # Nothing that is under way makes it shorter than with empty streams.
                self._machine.streams.restore(())
                begun = self._machine.streams.now
                self._run((node,))
                total += self._machine.streams.now - begun
            elif isinstance(node, Run | Launch):
                self._machine.seconds(node.task)
            else:
                assert not isinstance(node, Branch), "branches have been decided"
        return total


class _NoLedger(Ledger):
    """Keeps no books: only the clock is looked at."""

    def fresh(self) -> Ledger:
        """Itself, for nothing is in it."""
        return self

    def ran(self, task: Task, seconds: float, alone: float) -> None:
        """Nothing is kept."""

    def launched(self, task: Task) -> None:
        """Nothing is kept."""

    def flew(
        self, task: Task, seconds: float, work: float, kernel: Kernel | None
    ) -> None:
        """Nothing is kept."""

    def stood_still(self, task: Task, seconds: float) -> None:
        """Nothing is kept."""

    def add(self, other: Ledger, times: float = 1) -> None:
        """Nothing is kept."""
