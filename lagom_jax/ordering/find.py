"""Finds a better order for a compiled step, and says what it gives."""

from __future__ import annotations

import dataclasses
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

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
from lagom_jax.schedule.build import CALLERS, Builder, trips_of
from lagom_jax.schedule.program import Block, Branch, Launch, Loop, Program, Task, Wait
from lagom_jax.search.arms import decided
from lagom_jax.search.controls import FINE, Controls, Grid
from lagom_jax.search.frontier import Point
from lagom_jax.search.lagom import Lagom
from lagom_jax.search.space import space_of
from lagom_jax.search.stage import Choice, Stage

EVALUATIONS: Final = 100_000
"""How many orders are replayed at most, if nothing else is said."""
_PACES = (1.0, 1.5, 2.5, 4.0)
_ROUNDS = 2
# The part of the evaluations that goes to descents from several starts; the others are
# spent near the best of what these find.
_FIRST_LOOK = 0.5


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
    given = Builder(module)
    program = given.program()
    space = space_of(program, cluster, controls, grid)
    stage = Stage(program, space, model, correct)
    search = _Search(given, stage, cluster, model, correct, spare_bytes)
    first = Lagom().choose(stage).choice
    before = stage.score(first).step_seconds
    best = _Candidate({}, first, before)
    found: list[_Candidate] = []
    options = paths(stage)
    starts = [first, *(search.at_pace(first, options, pace) for pace in _PACES)]
    for start in starts:
        share = int(evaluations * _FIRST_LOOK) // len(starts)
        found.append(search.improved(_Candidate({}, start, 0.0), options, share))
    found.append(search.best_of_each(found))
    for number in range(_ROUNDS):
        best = min(best, *found, key=lambda candidate: candidate.seconds)
        dice = random.Random(number)
        share = max(0, evaluations - search.evaluations) // (_ROUNDS - number)
        found.append(search.improved(best, options, share, dice))
    best = min(best, *found, key=lambda candidate: candidate.seconds)
    after = given.program(search.instructions(best.orders))
    space = space_of(after, cluster, controls, grid)
    stage = Stage(after, space, model, correct)
    seconds = stage.score(Lagom().choose(stage).choice).step_seconds
    print(
        "joint",
        best.seconds,
        "lagom",
        seconds,
        [round(1e3 * f.seconds, 2) for f in found],
    )
    if seconds >= before:
        best, after, seconds = _Candidate({}, first, before), program, before
    return Ordering(
        sequences=search.sequences(best.orders),
        program=after,
        before_seconds=before,
        after_seconds=seconds,
        live_bytes_change=search.live_bytes(best.orders) - search.live_bytes({}),
        evaluations=search.evaluations,
    )


_Orders: TypeAlias = dict[int, Place]


@dataclasses.dataclass(frozen=True, slots=True)
class _Candidate:
    """Orders of some computations, and what they are good for."""

    orders: _Orders
    choice: Choice
    """Where a search goes on."""
    seconds: float
    """The step; under Lagom's settings where not all were chosen with the orders."""


class _Search:
    """The computations of a module that can be put in another order."""

    def __init__(
        self,
        builder: Builder,
        stage: Stage,
        cluster: Cluster,
        model: CostModel,
        correct: Callable[[Prices], Prices],
        spare_bytes: int | None,
    ) -> None:
        self._builder, self._stage, self._cluster = builder, stage, cluster
        self._model, self._correct, self._spare_bytes = model, correct, spare_bytes
        self.evaluations = 0
        self._plain: dict[int, UnitSequence] = {}
        self._live: dict[int, int] = {}
        self._all = _inner_first(builder.module)
        for computation in self._all:
            inner = Inner({}, self._live)
            sequence = sequence_of(builder, computation, inner)
            self._plain[computation.id] = sequence
            self._live[computation.id] = sequence.live_bytes(sequence.given)
        self._times = _times_run(builder.module)
        self._changeable = [
            computation
            for computation in self._all
            if any(unit.launches for unit in self._plain[computation.id].units)
            and _is_closed(builder.block(computation))
        ]
        owned = {
            group
            for computation in self._changeable
            for group in self._own(self._plain[computation.id])
        }
        in_flight = {
            site
            for computation in self._all
            for unit in self._plain[computation.id].units
            for site in _launched(unit.nodes)
        }
        self._fixed = frozenset(
            number
            for number, group in enumerate(stage.space.groups)
            if in_flight.isdisjoint(group.sites)
        )
        self._settled = len(owned | self._fixed) == len(stage.space.groups)

    def instructions(self, orders: _Orders) -> dict[int, Sequence[Instruction]]:
        """The instructions of the computations that have another order."""
        return {
            number: self._plain[number].instructions(place.order)
            for number, place in orders.items()
        }

    def live_bytes(self, orders: _Orders) -> int:
        """The estimate for the whole step."""
        return self._inner(orders).live_bytes[self._builder.module.entry.id]

    def _inner(self, orders: _Orders) -> Inner:
        live: dict[int, int] = {}
        for c in self._all:
            sequence = with_inner(self._builder, self._plain[c.id], Inner({}, live))
            order = orders[c.id].order if c.id in orders else sequence.given
            live[c.id] = sequence.live_bytes(order)
        return Inner(self.instructions(orders), live)

    def at_pace(
        self, choice: Choice, options: Sequence[Sequence[Point]], pace: float
    ) -> Choice:
        """A choice with all collectives that run beside kernels at one pace."""
        return tuple(
            candidate if group in self._fixed else paced(options[group], pace)
            for group, candidate in enumerate(choice)
        )

    def improved(
        self,
        begin: _Candidate,
        options: Sequence[Sequence[Point]],
        evaluations: int,
        dice: random.Random | None = None,
    ) -> _Candidate:
        """Searches every computation from a candidate, inner ones first."""
        orders, choice = dict(begin.orders), begin.choice
        weights: list[float] = []
        for computation in self._changeable:
            descent, _ = self._descent(computation, orders, choice, options)
            excess = max(0.0, descent.excess_seconds)
            weights.append(excess * self._times.get(computation.id, 1))
        total = sum(weights) or 1.0
        for computation, weight in zip(self._changeable, weights, strict=True):
            descent, terms = self._descent(computation, orders, choice, options)
            share = int(evaluations * weight / total)
            orders[computation.id] = descent.run(share, dice)
            choice = tuple(terms.choice)
            self.evaluations += descent.evaluations
        return self._judged(orders, choice)

    def _descent(
        self,
        computation: Computation,
        orders: _Orders,
        choice: Choice,
        options: Sequence[Sequence[Point]],
    ) -> tuple[Descent, Terms]:
        inner = self._inner(orders)
        plain = self._plain[computation.id]
        sequence = self._decided(with_inner(self._builder, plain, inner))
        terms = Terms(self._stage, self._cluster, choice)
        limit = None
        if self._spare_bytes is not None:
            limit = self._live[computation.id] + self._spare_bytes
        own = {g: [p.candidate for p in options[g]] for g in self._own(sequence)}
        order = sequence.given
        if computation.id in orders:
            order = orders[computation.id].order
        return Descent(sequence, terms, own, order, most_bytes=limit), terms

    def best_of_each(self, found: Sequence[_Candidate]) -> _Candidate:
        """Of each computation the order that took least."""
        orders: _Orders = {}
        choice = list(min(found, key=lambda candidate: candidate.seconds).choice)
        for computation in self._changeable:
            places = (candidate.orders[computation.id] for candidate in found)
            least = min(places, key=lambda place: place.seconds)
            orders[computation.id] = least
            for group, candidate in least.settings:
                choice[group] = candidate
        return self._judged(orders, tuple(choice))

    def _judged(self, orders: _Orders, choice: Choice) -> _Candidate:
        """A candidate with the step's time under Lagom's settings."""
        if self._spare_bytes is not None:
            most = self.live_bytes({}) + self._spare_bytes
            if self.live_bytes(orders) > most:
                return _Candidate(orders, choice, float("inf"))
        program = self._builder.program(self.instructions(orders))
        stage = Stage(program, self._stage.space, self._model, self._correct)
        seconds = stage.score(choice).step_seconds
        if self._settled:
            # Every setting has been chosen together with the order.
            return _Candidate(orders, choice, seconds)
        lagom = Lagom().choose(stage).choice
        with_lagom = stage.score(lagom).step_seconds
        if with_lagom <= seconds:
            choice = lagom
        return _Candidate(orders, choice, with_lagom)

    def _own(self, sequence: UnitSequence) -> tuple[int, ...]:
        """Groups whose collectives are all launched by this computation."""
        tasks = {node.task for unit in sequence.units for node in unit.launches}
        return tuple(
            number
            for number, group in enumerate(self._stage.space.groups)
            if all(site in tasks for site in group.sites)
        )

    def _decided(self, sequence: UnitSequence) -> UnitSequence:
        prices = self._correct(self._model)
        units = tuple(
            dataclasses.replace(
                unit, nodes=decided(Program("", unit.nodes, 1), prices).body
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


def _launched(block: Block) -> Iterator[Task]:
    return (node.task for node in block if isinstance(node, Launch))


def _times_run(module: Module) -> dict[int, int]:
    """How often a step runs each computation; of a branch every arm, once."""
    times: defaultdict[int, int] = defaultdict(int)
    times[module.entry.id] = 1
    for computation in reversed(_inner_first(module)):
        for instruction in computation.sequence or ():
            if instruction.opcode in CALLERS:
                each = times[computation.id] * (trips_of(instruction) or 1)
                for called in instruction.called_ids:
                    times[called] += each
    return times


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
