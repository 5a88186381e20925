"""How long a computation takes in one order or another.

The computation is replayed as a step of its own. A move changes a stretch of the order,
so a replay begins there, from the state that the streams were in, and ends where, as
in the order before, nothing is under way: what follows takes as long as it did.
"""

from __future__ import annotations

from lagom_jax.ordering.clock import Clock, Flying
from lagom_jax.ordering.sequence import Order, UnitSequence
from lagom_jax.ordering.terms import Terms
from lagom_jax.schedule.program import Block, Kernel, Loop, Run, Task

_TOO_LONG = float("inf")


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
        self.evaluations = 0
        """Orders that were replayed, wholly or in part."""
        self._terms = terms
        nodes = [unit.nodes for unit in sequence.units]
        self._works = [bool(block) for block in nodes]
        self._clock = Clock(nodes, terms)
        self.alone = [self._alone(number, block) for number, block in enumerate(nodes)]
        """Seconds that each unit computes at least; of a loop, that it takes."""
        self._states: list[Flying] = []
        self._times: list[float] = []
        self._following: list[float] = []
        """By place what the units from there on compute at least."""
        self.seconds = 0.0
        """Of the reference."""

    def task_seconds(self, task: Task) -> float:
        """What a task takes alone."""
        return self._terms.seconds[self._terms.number(task)]

    def keep(self, order: Order, first: int = 0) -> float:
        """Makes an order the reference, and says how long it takes.

        Args:
            order: The order.
            first: The first place where it, or the setting of what is launched there,
                differs from the reference before.
        """
        clock, works = self._clock, self._works
        if not self._states:
            self._states, self._times, first = [()], [0.0], 0
        del self._states[first + 1 :], self._times[first + 1 :]
        clock.restore(self._states[first], self._times[first])
        for number in order[first:]:
            if works[number]:
                clock.run(number)
            self._states.append(clock.state())
            self._times.append(clock.now)
        clock.drain()
        self.seconds = clock.now
        following = [0.0]
        for number in reversed(order):
            following.append(following[-1] + self.alone[number])
        following.reverse()
        self._following = following
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
        clock, works, alone = self._clock, self._works, self.alone
        states, times = self._states, self._times
        clock.restore(states[first], times[first])
        # Whatever follows takes its time alone at least, in any order.
        most, done = limit - self._following[first], 0.0
        for number in filter(works.__getitem__, order[first : last + 1]):
            clock.run(number)
            done += alone[number]
            if clock.now - done >= most:
                return _TOO_LONG
        place = last
        while not clock.is_idle() or states[place + 1]:
            place += 1
            if place == len(order):
                clock.drain()
                return clock.now if clock.now < limit else _TOO_LONG
            number = order[place]
            if works[number]:
                clock.run(number)
                done += alone[number]
                if clock.now - done >= most:
                    return _TOO_LONG
        ended = clock.now + self.seconds - times[place + 1]
        return ended if ended < limit else _TOO_LONG

    def _alone(self, number: int, block: Block) -> float:
        total = 0.0
        for node in block:
            if isinstance(node, Run) and isinstance(node.task, Kernel):
                total += self.task_seconds(node.task)
        if any(isinstance(node, Loop) for node in block):
            # Nothing that is under way makes it shorter than with idle streams.
            self._clock.restore((), 0.0)
            self._clock.run(number)
            return self._clock.now
        return total
