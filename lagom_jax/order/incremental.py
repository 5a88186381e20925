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

from lagom_jax.order.clock import Clock, StreamStates, snapped
from lagom_jax.order.replayed import Replayed, ReplayedStretch
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
        self._known, self._known_otherwise = Replayed(count + 1), Replayed(count + 1)
        self._settings = -1
        """Changes of settings up to the ones that the other is known for."""
        self.take([Splice(0, self.order)])

    @property
    def excess_seconds(self) -> float:
        """Seconds of the present order beyond its kernels, each alone."""
        return self.seconds - sum(self.alone)

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
        known = self._known_of(changed)
        works, order, actions = self._works, self.order, self._clock.actions
        states, rests, alone = self._states, known.rests, self.alone
        last, shift, there = len(splices) - 1, 0.0, False
        begun = now = least = 0.0
        state, replayed = self._clock.idle, ReplayedStretch()
        # Units of that stretch that are the same here; negative: no more are.
        same = -1
        reached = list[tuple[int, StreamStates, float]]()
        for number, splice in enumerate(splices):
            place = splice.first
            if not there:
                begun = now = self._times.item(place) + shift
                state, least = states[place], self._following[place]
                replayed = known.stretches.get(place)
                if replayed is None:
                    replayed = known.stretches[place] = ReplayedStretch()
                same, there = 0, True
            for unit in splice.units:
                if works[unit]:
                    if same >= 0:
                        if same < len(replayed.units) and replayed.units[same] == unit:
                            same += 1
                            continue
                        if same:
                            now, state, least = replayed.after[same - 1]
                            now += begun
                            if now + least >= limit:
                                return _TOO_LONG
                        replayed.cut(same)
                        same = -1
                    now, state = actions[unit](now, state)
                    least -= alone[unit]
                    replayed.units.append(unit)
                    replayed.after.append((now - begun, state, least))
                    if now + least >= limit:
                        return _TOO_LONG
            if same > 0:
                now, state, least = replayed.after[same - 1]
                now += begun
            place = splice.end
            until = len(order) if number == last else splices[number + 1].first
            while True:
                if state == states[place] and not (
                    changed and state[0].has_any(changed)
                ):
                    shift, there = now - self._times.item(place), False
                    break
                if place == until:
                    break
                unit = order[place]
                if works[unit]:
                    if number == last:
                        rest = rests[place]
                        seconds = None if rest is None else rest.get(state)
                        if seconds is not None:
                            return self._ended(known, reached, now + seconds, limit)
                        reached.append((place, state, now))
                    if same >= 0:
                        if same < len(replayed.units) and replayed.units[same] == unit:
                            now, state, least = replayed.after[same]
                            now += begun
                            same += 1
                            if now + least >= limit:
                                return _TOO_LONG
                            place += 1
                            continue
                        replayed.cut(same)
                        same = -1
                    now, state = actions[unit](now, state)
                    least -= alone[unit]
                    replayed.units.append(unit)
                    replayed.after.append((now - begun, state, least))
                    if now + least >= limit:
                        return _TOO_LONG
                place += 1
        seconds = self._clock.drain(now, state) if there else self.seconds + shift
        return self._ended(known, reached, seconds, limit)

    def _ended(
        self,
        known: Replayed,
        reached: Iterable[tuple[int, StreamStates, float]],
        seconds: float,
        limit: float,
    ) -> float:
        """Notes what the rest of the order takes from where a replay has come by."""
        for place, state, now in reached:
            known.add(place, state, seconds - now)
        return seconds if seconds < limit else _TOO_LONG

    def _known_of(self, changed: frozenset[int]) -> Replayed:
        """Replays beside the present order, or beside it with other settings."""
        if not changed:
            return self._known
        if self._settings != self._terms.changes:
            self._settings = self._terms.changes
            self._known_otherwise = Replayed(len(self._states))
        return self._known_otherwise

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
        self._settings = -1
        self._known.forget(len(states) if changed else splices[-1].end)
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
