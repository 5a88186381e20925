"""A replay that can be asked "what if": work in proportion to what changes.

The replay keeps, for every node of the program's top level, the state of the streams
before it and the totals up to it. When some tasks change, everything up to the first of
them stays as it was. From there on nodes are replayed until the streams are again in
the state they had in the first replay; what follows, up to the next changed task, is
the same as before and is added as one difference of totals.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import TypeAlias

from lagom_jax.cost.contention import Contention
from lagom_jax.cost.ledger import Ledger
from lagom_jax.cost.prices import Prices
from lagom_jax.cost.replay import Machine, same_state
from lagom_jax.cost.streams import State
from lagom_jax.cost.timeline import Totals
from lagom_jax.schedule.program import Program, Task, tasks_in

_Moment: TypeAlias = tuple[State, Totals]
"""What is under way before a node, and the totals up to it."""


class Baseline:
    """A program replayed once, to compare variants with.

    Example:
        >>> from lagom_jax.cost.prices import Price
        >>> from lagom_jax.hlo.work import Work
        >>> from lagom_jax.schedule.program import Kernel, Program, Run
        >>> class OneSecond:
        ...     def kernel(self, kernel): return Price(1.0, "memory")
        ...     def collective(self, collective): return Price(1.0, "nvlink")
        >>> class TwoSeconds(OneSecond):
        ...     def kernel(self, kernel): return Price(2.0, "memory")
        >>> kernel = Kernel("k", Work("copy", 0.0, 1, 1))
        >>> program = Program("p", (Run(kernel), Run(Kernel("l", kernel.work))), 1)
        >>> baseline = Baseline(program, OneSecond())
        >>> baseline.totals.step_seconds
        2.0
        >>> baseline.what_if(frozenset({kernel}), TwoSeconds()).step_seconds
        3.0
    """

    def __init__(
        self, program: Program, prices: Prices, contention: Contention | None = None
    ) -> None:
        self._nodes = program.body
        self._machine = Machine(prices, contention)
        self._before: list[_Moment] = []
        self._places: defaultdict[Task, list[int]] = defaultdict(list)
        ledger = Ledger(detailed=False)
        for position, node in enumerate(self._nodes):
            self._before.append((self._machine.streams.state(), ledger.totals.copy()))
            for task in {task for task, _, _ in tasks_in((node,))}:
                self._places[task].append(position)
            self._machine.node(node, ledger)
        self._before.append((self._machine.streams.state(), ledger.totals.copy()))
        self._machine.streams.drain(ledger)
        self.totals = ledger.totals.copy()
        """The program as it is."""

    def what_if(
        self,
        changed: frozenset[Task],
        prices: Prices,
        contention: Contention | None = None,
    ) -> Totals:
        """The totals of the program with some tasks changed.

        Args:
            changed: The tasks whose price, or whose effect on others, is another.
            prices: The new prices; those of all other tasks must be as before.
            contention: The new contention model; what it says of groups without a
                changed task must be as before.
        """
        places = sorted({p for task in changed for p in self._places.get(task, ())})
        if not places:
            return self.totals.copy()
        machine = self._machine.variant(changed, prices, contention)
        streams = machine.streams
        end = len(self._nodes)
        position = places[0]
        state, before = self._before[position]
        streams.restore(state)
        ledger = Ledger(detailed=False)
        ledger.totals.add(before)
        while position < end:
            machine.node(self._nodes[position], ledger)
            position += 1
            known, before = self._before[position]
            if not self._came_back(streams.state(), known, changed):
                continue
            following = bisect_left(places, position)
            # With no more changes, all that is left is as it was.
            target = places[following] if following < len(places) else end
            if target > position:
                state, reached = self._before[target]
                ledger.totals.add(reached)
                ledger.totals.add(before, -1)
                streams.restore(state)
                position = target
        streams.drain(ledger)
        return ledger.totals

    @staticmethod
    def _came_back(state: State, known: State, changed: frozenset[Task]) -> bool:
        return same_state(state, known) and not any(
            task in changed for _, _, task, _ in state
        )
