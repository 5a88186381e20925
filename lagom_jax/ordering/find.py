"""Finds a better order for a compiled step, and says what it gives."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from lagom_jax.cluster import Cluster
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.prices import Prices
from lagom_jax.hlo.module import Computation, Instruction, Module
from lagom_jax.ordering.descent import Descent, Place
from lagom_jax.ordering.options import paced, paths
from lagom_jax.ordering.sequence import (
    Inner,
    UnitSequence,
    sequence_of,
    with_inner,
)
from lagom_jax.ordering.terms import Terms
from lagom_jax.schedule.build import CALLERS, Builder
from lagom_jax.schedule.program import Block, Branch, Launch, Loop, Program, Wait
from lagom_jax.search.arms import decided
from lagom_jax.search.controls import FINE, Controls, Grid
from lagom_jax.search.lagom import Lagom
from lagom_jax.search.space import space_of
from lagom_jax.search.stage import Choice, Stage

EVALUATIONS: Final = 60_000
"""How many orders are replayed at most, if nothing else is said."""
_PACES = (1.0, 1.5, 2.5, 4.0)
_ROUNDS = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Ordering:
    """A better order for a step. All times are predicted."""

    sequences: Mapping[int, tuple[int, ...]]
    """For computations that changed, by their number among those that have a sequence:
    the place in the old sequence of each instruction of the new one."""
    program: Program
    """The step in the new order."""
    before_seconds: float
    """The step in the given order, with Lagom's settings."""
    after_seconds: float
    """The step in the new order, with Lagom's settings."""
    live_bytes_change: int
    """What the estimate of the memory in use grows by."""
    evaluations: int
    """Orders that were replayed."""


def find_order(
    module: Module,
    cluster: Cluster,
    model: CostModel,
    *,
    controls: Controls,
    grid: Grid = FINE,
    correct: Callable[[Prices], Prices] = lambda prices: prices,
    spare_bytes: int | None = None,
    evaluations: int = EVALUATIONS,
) -> Ordering:
    """Looks for an order in which the step is shorter than in the given one.

    Args:
        module: A module with a schedule.
        cluster: What it runs on.
        model: Prices and contention.
        controls: What can be set in NCCL, and told apart.
        grid: Which values are tried.
        correct: What the user's own measurements make of the model's prices.
        spare_bytes: What the estimate of live memory may grow by; None for any growth.
        evaluations: How many orders are replayed at most.

    Raises:
        HloError: The module has no schedule.
    """
    builder = Builder(module)

    def staged(program: Program) -> Stage:
        space = space_of(program, cluster, controls, grid)
        return Stage(program, space, model, correct)

    given = builder.program()
    stage = staged(given)
    choice = Lagom().choose(stage).choice
    before = stage.score(choice).step_seconds
    search = _Search(builder, stage, cluster, correct(model), spare_bytes)
    best, least = search.given(), before
    options = paths(stage)
    starts = [choice, *(tuple(paced(o, pace) for o in options) for pace in _PACES)]
    share = evaluations // (len(starts) + _ROUNDS)
    found: list[_Orders] = []

    def consider(orders: _Orders) -> tuple[float, Choice]:
        nonlocal best, least
        found.append(orders)
        program = builder.program(search.instructions(orders))
        after = Stage(program, stage.space, model, correct)
        choice = Lagom().choose(after).choice
        seconds = after.score(choice).step_seconds
        if seconds < least:
            best, least = orders, seconds
        return seconds, choice

    for start in starts:
        consider(search.improved(search.given(), start, options, share))
    _, choice = consider(search.best_of_each(found))
    for _ in range(_ROUNDS):
        _, choice = consider(search.improved(best, choice, options, share))
    program = builder.program(search.instructions(best))
    after = staged(program)
    after_seconds = after.score(Lagom().choose(after).choice).step_seconds
    if after_seconds >= before:
        best, program, after_seconds = search.given(), given, before
    return Ordering(
        sequences=search.sequences(best),
        program=program,
        before_seconds=before,
        after_seconds=after_seconds,
        live_bytes_change=search.live_bytes(best) - search.live_bytes(search.given()),
        evaluations=search.evaluations,
    )


_Orders = dict[int, Place]


class _Search:
    """The computations of a module that can be put in another order."""

    def __init__(
        self,
        builder: Builder,
        stage: Stage,
        cluster: Cluster,
        prices: Prices,
        spare_bytes: int | None,
    ) -> None:
        self._builder, self._stage, self._cluster = builder, stage, cluster
        self._prices, self._spare_bytes = prices, spare_bytes
        self.evaluations = 0
        self._plain: dict[int, UnitSequence] = {}
        live: dict[int, int] = {}
        self._all: list[Computation] = []
        for computation in _inner_first(builder.module):
            inner = Inner({}, live)
            sequence = sequence_of(builder, computation, inner)
            self._plain[computation.id] = sequence
            live[computation.id] = sequence.live_bytes(sequence.given)
            self._all.append(computation)
        self._live = live
        self._changeable = [
            c
            for c in self._all
            if any(u.launches for u in self._plain[c.id].units)
            and _is_closed(builder.block(c))
        ]

    def given(self) -> _Orders:
        return {}

    def instructions(self, orders: _Orders) -> dict[int, Sequence[Instruction]]:
        return {
            number: self._plain[number].instructions(place.order)
            for number, place in orders.items()
        }

    def live_bytes(self, orders: _Orders) -> int:
        """The estimate for the whole step."""
        return self._inner(orders).live_bytes[self._builder.module.entry.id]

    def _inner(self, orders: _Orders) -> Inner:
        live: dict[int, int] = {}
        known = self.instructions(orders)
        for c in self._all:
            sequence = with_inner(self._builder, self._plain[c.id], Inner({}, live))
            order = orders[c.id].order if c.id in orders else sequence.given
            live[c.id] = sequence.live_bytes(order)
        return Inner(known, live)

    def improved(
        self,
        orders: _Orders,
        choice: Choice,
        options: Sequence[Sequence[object]],
        evaluations: int,
    ) -> _Orders:
        """Searches every computation from an order and a choice, inner ones first."""
        found = dict(orders)
        flights = {
            c.id: sum(bool(u.launches) for u in self._plain[c.id].units)
            for c in self._changeable
        }
        total = sum(flights.values())
        for computation in self._changeable:
            inner = self._inner(found)
            sequence = self._decided(
                with_inner(self._builder, self._plain[computation.id], inner)
            )
            terms = Terms(self._stage, self._cluster, choice)
            limit = None
            if self._spare_bytes is not None:
                limit = self._live[computation.id] + self._spare_bytes
            own = self._own(sequence)
            descent = Descent(
                sequence,
                terms,
                {g: [p.candidate for p in options[g]] for g in own},
                most_bytes=limit,
                evaluations=evaluations * flights[computation.id] // total,
            )
            start = sequence.given
            if computation.id in found:
                start = found[computation.id].order
            found[computation.id] = descent.run(start)
            choice = tuple(terms.choice)
            self.evaluations += descent.evaluations
        return found

    def best_of_each(self, found: Sequence[_Orders]) -> _Orders:
        """Of each computation the order that took least."""
        return {
            c.id: min((f[c.id] for f in found), key=lambda place: place.seconds)
            for c in self._changeable
        }

    def _own(self, sequence: UnitSequence) -> tuple[int, ...]:
        """Groups whose collectives are all launched by this computation."""
        tasks = {n.task for u in sequence.units for n in u.launches}
        return tuple(
            number
            for number, group in enumerate(self._stage.space.groups)
            if all(site in tasks for site in group.sites)
        )

    def _decided(self, sequence: UnitSequence) -> UnitSequence:
        units = tuple(
            dataclasses.replace(
                unit,
                nodes=decided(Program("", unit.nodes, 1), self._prices).body,
            )
            if any(isinstance(node, Loop | Branch) for node in unit.nodes)
            else unit
            for unit in sequence.units
        )
        return dataclasses.replace(sequence, units=units)

    def sequences(self, orders: _Orders) -> dict[int, tuple[int, ...]]:
        scheduled = [
            c
            for c in self._builder.module.computations.values()
            if c.sequence is not None
        ]
        changed: dict[int, tuple[int, ...]] = {}
        for number, computation in enumerate(scheduled):
            if computation.id in orders:
                assert computation.sequence is not None
                place = {i.id: n for n, i in enumerate(computation.sequence)}
                order = self._plain[computation.id].instructions(
                    orders[computation.id].order
                )
                permutation = tuple(place[i.id] for i in order)
                if permutation != tuple(range(len(permutation))):
                    changed[number] = permutation
        return changed


def _inner_first(module: Module) -> list[Computation]:
    """The computations that loops, branches and calls of a step lead to."""
    found: dict[int, Computation] = {}

    def visit(computation: Computation) -> None:
        for instruction in computation.sequence or ():
            if instruction.opcode in CALLERS:
                for called in module.called(instruction):
                    if called.id not in found:
                        visit(called)
        if computation.sequence is not None:
            found[computation.id] = computation

    visit(module.entry)
    return list(found.values())


def _is_closed(block: Block) -> bool:
    """Whether a block waits for all that it launches, and for nothing else."""
    under_way: set[int] = set()
    for node in _flat(block):
        if isinstance(node, Launch):
            under_way.add(node.token)
        elif isinstance(node, Wait):
            if not under_way.issuperset(node.tokens):
                return False
            under_way.difference_update(node.tokens)
    return not under_way


def _flat(block: Block) -> Iterator[object]:
    for node in block:
        if isinstance(node, Loop):
            yield from _flat(node.body)
        elif isinstance(node, Branch):
            for arm in node.arms:
                yield from _flat(arm)
        else:
            yield node
