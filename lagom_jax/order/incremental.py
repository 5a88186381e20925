"""Incremental replay: the time of a computation in one order after another.

The computation is replayed as a step of its own. Of the present order it is known at
every place when, and in which state of the streams, it is reached. A change of a
stretch is replayed from the beginning of the stretch until, behind it, the streams are
in the same state as before: what follows takes as long as it did. It ends earlier where
the kernels that are left would already make the order no better than the best.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from lagom_jax.order.clock import Clock, snapped
from lagom_jax.order.sequence import UnitSequence
from lagom_jax.order.splices import Splice
from lagom_jax.order.terms import Terms
from lagom_jax.program.program import Block, Kernel, Loop, Run, Task

_TOO_LONG = float("inf")
_NONE: frozenset[int] = frozenset()


class IncrementalReplay:
    """Replays of one computation; `order` is the present one, `seconds` its time."""

    def __init__(
        self, sequence: UnitSequence, terms: Terms, order: Sequence[int]
    ) -> None:
        """Prepares for a computation, and replays it.

        Args:
            sequence: Its units, without branches among their nodes.
            terms: The costs of its tasks; changed by the search, not here.
            order: The order to begin with.
        """
        self.evaluations = 0
        """Orders that were tried, each replayed as far as it had to be."""
        self._terms = terms
        blocks = [unit.nodes for unit in sequence.units]
        self._works = [bool(block) for block in blocks]
        self._clock = Clock(blocks, terms)
        self.alone = [self._alone(number, block) for number, block in enumerate(blocks)]
        """Seconds that each unit computes at least; of a loop, that it takes."""
        self.order = [*order]
        count = len(self.order)
        self._states = [self._clock.idle] * (count + 1)
        self._times = np.zeros(count + 1)
        self._following = [0.0] * (count + 1)
        """By place the seconds that the units from there on compute at least."""
        self.seconds = 0.0
        self.take([Splice(0, self.order)])

    def task_seconds(self, task: Task) -> float:
        """Seconds of a task alone."""
        return self._terms.seconds[self._terms.number(task)]

    def seconds_with(
        self,
        splices: Sequence[Splice],
        limit: float = _TOO_LONG,
        changed: frozenset[int] = _NONE,
    ) -> float:
        """Seconds of the present order with a change; infinite if not below a limit.

        Args:
            splices: The change, from front to back, at least one; where a launch has
                another setting, its unit is in one of them.
            limit: Orders that take so long are of no interest.
            changed: Numbers of the tasks that have another setting.
        """
        self.evaluations += 1
        works, order, alone = self._works, self.order, self.alone
        states, times = self._states, self._times
        actions, following = self._clock.actions, self._following
        shift, place, there = 0.0, 0, False
        now, state = 0.0, self._clock.idle
        for number, splice in enumerate(splices):
            begin = splice.first
            if not there:
                now, state = times.item(begin) + shift, states[begin]
            following_here = following[begin]
            for unit in splice.units:
                if works[unit]:
                    now, state = actions[unit](now, state)
                    following_here -= alone[unit]
                    if now + following_here >= limit:
                        return _TOO_LONG
            place = begin + len(splice.units)
            last = number + 1 == len(splices)
            until = len(order) if last else splices[number + 1].first
            there = True
            while state != states[place] or (changed and state[0].has_any(changed)):
                if place == until:
                    break
                unit = order[place]
                place += 1
                if works[unit]:
                    now, state = actions[unit](now, state)
                    if now + following[place] >= limit:
                        return _TOO_LONG
            else:
                shift, there = now - times.item(place), False
        seconds = self._clock.drain(now, state) if there else self.seconds + shift
        return seconds if seconds < limit else _TOO_LONG

    def take(self, splices: Sequence[Splice], changed: frozenset[int] = _NONE) -> float:
        """Makes a change the present order; how long that takes.

        Args:
            splices: The change, as for `seconds_with`.
            changed: Likewise.
        """
        order, actions = self.order, self._clock.actions
        states, times = self._states, self._times
        shift, there = 0.0, False
        now, state = 0.0, self._clock.idle
        for number, splice in enumerate(splices):
            begin, end = splice.first, splice.end
            order[begin:end] = splice.units
            self._follow(begin, end)
            if not there:
                now, state = times.item(begin) + shift, states[begin]
            place, last = begin, number + 1 == len(splices)
            until = len(order) if last else splices[number + 1].first
            passed = list[float]()
            there = True
            while place < until:
                if (
                    place >= end
                    and state == states[place]
                    and not (changed and state[0].has_any(changed))
                ):
                    shift, there = now - times.item(place), False
                    break
                states[place] = state
                passed.append(now)
                if self._works[order[place]]:
                    now, state = actions[order[place]](now, state)
                place += 1
            times[begin : begin + len(passed)] = passed
            times[place : until + last] += shift
        if there:
            states[-1], times[-1] = state, now
            self.seconds = self._clock.drain(now, state)
        else:
            self.seconds += shift
        return self.seconds

    def _follow(self, begin: int, end: int) -> None:
        following, alone, order = self._following, self.alone, self.order
        for place in range(end - 1, begin - 1, -1):
            following[place] = following[place + 1] + alone[order[place]]

    def _alone(self, number: int, block: Block) -> float:
        if any(isinstance(node, Loop) for node in block):
            # Nothing that is under way makes it shorter than with idle streams.
            seconds, _ = self._clock.actions[number](0.0, self._clock.idle)
            return seconds
        return _total(
            self.task_seconds(node.task)
            for node in block
            if isinstance(node, Run) and isinstance(node.task, Kernel)
        )


def _total(seconds: Iterable[float]) -> float:
    return sum(map(snapped, seconds), 0.0)
