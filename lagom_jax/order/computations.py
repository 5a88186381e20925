"""The computations of a step that can be put in another order, and their orders."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from lagom_jax.cluster import Cluster
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.prices import Prices
from lagom_jax.hlo.module import Computation, Instruction, Module
from lagom_jax.order.descent import Arrangement, Descent
from lagom_jax.order.displacements import Displacement, displacements_of
from lagom_jax.order.incremental import IncrementalReplay
from lagom_jax.order.options import paced, paths
from lagom_jax.order.parameters import SearchParameters
from lagom_jax.order.robust_replay import RobustReplay, StepBeside
from lagom_jax.order.sequence import (
    Inner,
    UnitSequence,
    sequence_of,
    with_inner,
)
from lagom_jax.order.terms import Terms
from lagom_jax.program.build import CALLERS, Builder, trips_of
from lagom_jax.program.program import (
    Block,
    Branch,
    Launch,
    Loop,
    Program,
    Task,
    is_closed,
    tasks_in,
)
from lagom_jax.settings.arms import decided
from lagom_jax.settings.frontier import Point
from lagom_jax.settings.policy import replaced
from lagom_jax.settings.space import Choice, Space
from lagom_jax.settings.stage import Stage

Orders: TypeAlias = dict[int, Arrangement]
"""By id of a computation the arrangement that a search found."""


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """Orders of some computations, with settings and the time they take."""

    orders: Orders
    choice: Choice
    """Settings, from which a search goes on."""
    seconds: float
    """The step; under Lagom's settings where not all were chosen with the orders."""

    def carried(self, space: Space) -> Candidate:
        """The same, found in the coarser space and said in this one."""
        orders = {
            number: dataclasses.replace(arrangement, settings=())
            for number, arrangement in self.orders.items()
        }
        return Candidate(orders, space.carried(self.choice), self.seconds)


class Computations:
    """The computations of a module that can be put in another order."""

    def __init__(
        self,
        builder: Builder,
        stage: Stage,
        cluster: Cluster,
        model: CostModel,
        correct: Callable[[Prices], Prices],
        spare_bytes: int | None,
        parameters: SearchParameters,
    ) -> None:
        self.stage = stage
        """The step in the given order, and all that can be set."""
        self._builder, self._cluster = builder, cluster
        self._terms = Terms(stage, stage.untouched)
        self._model, self._correct, self._spare_bytes = model, correct, spare_bytes
        self._parameters = parameters
        self.evaluations = 0
        self._plain: dict[int, UnitSequence] = {}
        self._live: dict[int, int] = {}
        self._all = _inner_first(builder.module)
        for computation in self._all:
            inner = Inner({}, self._live)
            sequence = sequence_of(builder, computation, inner)
            self._plain[computation.id] = sequence
            self._live[computation.id] = sequence.live_bytes(sequence.given)
        self.times_run = _times_run(builder.module)
        """By id of a computation: its runs in a step."""
        self.changeable = [
            computation
            for computation in self._all
            if any(unit.launches for unit in self._plain[computation.id].units)
            and is_closed(builder.block(computation))
        ]
        """Those that an order is looked for, inner ones first."""
        owned = {
            group
            for computation in self.changeable
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
        self._shared = [
            number
            for number in range(len(stage.space.groups))
            if number not in owned | self._fixed
        ]

    def instructions(self, orders: Orders) -> dict[int, Sequence[Instruction]]:
        """The instructions of the computations that have another order."""
        return {
            number: self._plain[number].instructions(place.order)
            for number, place in orders.items()
        }

    def fits(self, orders: Orders) -> bool:
        """True if the estimate for the whole step grows by no more than it may."""
        if self._spare_bytes is None:
            return True
        return self.live_bytes(orders) <= self.live_bytes({}) + self._spare_bytes

    def live_bytes(self, orders: Orders) -> int:
        """The estimate for the whole step."""
        return self._inner(orders).live_bytes[self._builder.module.entry.id]

    def _inner(self, orders: Orders) -> Inner:
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

    def eager(self, choice: Choice, options: Sequence[Sequence[Point]]) -> Candidate:
        """A candidate with orders in which streams are kept busy."""
        orders: Orders = {}
        for computation in self.changeable:
            descent, _ = self.descent(computation, orders, choice, options)
            orders[computation.id] = descent.eager()
        return Candidate(orders, choice, 0.0)

    def improved(
        self,
        begin: Candidate,
        options: Sequence[Sequence[Point]],
        evaluations: int,
        dice: random.Random | None = None,
        *,
        settings_first: bool = False,
    ) -> Candidate:
        """Searches every computation from a candidate, inner ones first."""
        orders, choice = dict(begin.orders), begin.choice
        weights: list[float] = []
        # In the first computation nothing changes before it is searched.
        first: tuple[Descent, Terms] | None = None
        for computation in self.changeable:
            found = self.descent(computation, orders, choice, options)
            first = first or found
            excess = max(0.0, found[0].excess_seconds)
            weights.append(excess * self.times_run[computation.id])
        total = sum(weights) or 1.0
        for computation, weight in zip(self.changeable, weights, strict=True):
            descent, terms = first or self.descent(computation, orders, choice, options)
            first = None
            share = int(evaluations * weight / total)
            orders[computation.id] = descent.run(
                share, dice, settings_first=settings_first
            )
            choice = tuple(terms.choice)
            self.evaluations += descent.evaluations
        return self._judged(orders, choice, options)

    def descent(
        self,
        computation: Computation,
        orders: Orders,
        choice: Choice,
        options: Sequence[Sequence[Point]],
        beside: Sequence[tuple[Stage, StepBeside]] = (),
    ) -> tuple[Descent, Terms]:
        """A search of one computation, and the terms that it changes.

        Args:
            computation: One of those that can be changed.
            orders: The present ones, of all.
            choice: The present settings.
            options: For each group the settings that are tried.
            beside: Where several models are asked, the step by each; the likeliest
                comes first.
        """
        inner = self._inner(orders)
        plain = self._plain[computation.id]
        sequence = self._decided(with_inner(self._builder, plain, inner))
        terms = self._terms.under(choice)
        limit = None
        if self._spare_bytes is not None:
            limit = self._live[computation.id] + self._spare_bytes
        own = {g: [p.candidate for p in options[g]] for g in self._own(sequence)}
        order = sequence.given
        if computation.id in orders:
            order = orders[computation.id].order
        replay = None
        if beside:
            each = [terms, *(Terms(stage, choice) for stage, _ in beside[1:])]
            terms.followers = tuple(each[1:])
            # A task has one number for all of them.
            for unit, one in itertools.product(sequence.units, each):
                for task, _, _ in tasks_in(unit.nodes):
                    one.number(task)
            replays = [IncrementalReplay(sequence, one, order) for one in each]
            steps = [step for _, step in beside]
            replay = RobustReplay(replays, steps, self.times_run[computation.id])
        descent = Descent(
            sequence,
            terms,
            own,
            order,
            most_bytes=limit,
            parameters=self._parameters,
            replay=replay,
        )
        return descent, terms

    def orders_of(self, sequences: Mapping[int, Sequence[int]]) -> Orders:
        """The orders that `sequences` says: of what was found in the same module.

        Args:
            sequences: By number of a computation the old place of each instruction.
        """
        orders: Orders = {}
        for number, computation in enumerate(self._builder.module.scheduled):
            if number in sequences:
                plain = self._plain[computation.id]
                place = {i.id: n for n, i in enumerate(computation.sequence or ())}
                unit = {
                    place[i.id]: unit.number
                    for unit in plain.units
                    for i in unit.instructions
                }
                order = tuple(dict.fromkeys(unit[one] for one in sequences[number]))
                orders[computation.id] = Arrangement(order, (), 0.0)
        return orders

    def best_of_each(
        self, found: Sequence[Candidate], options: Sequence[Sequence[Point]]
    ) -> Candidate:
        """Of each computation the order that took least."""
        orders: Orders = {}
        choice = list(min(found, key=lambda candidate: candidate.seconds).choice)
        for computation in self.changeable:
            places = (candidate.orders[computation.id] for candidate in found)
            least = min(places, key=lambda place: place.seconds)
            orders[computation.id] = least
            for group, candidate in least.settings:
                choice[group] = candidate
        return self._judged(orders, tuple(choice), options)

    def _judged(
        self, orders: Orders, choice: Choice, options: Sequence[Sequence[Point]]
    ) -> Candidate:
        """A candidate with the step's time under Lagom's settings."""
        if not self.fits(orders):
            return Candidate(orders, choice, float("inf"))
        program = self.program(orders)
        stage = self.stage.in_order(program)
        best, settled = stage.step_seconds(choice), 0
        while settled < len(self._shared):
            for group in self._shared:
                settled += 1
                for point in options[group]:
                    other = replaced(choice, group, point.candidate)
                    seconds = stage.step_seconds(other)
                    if seconds < best * (1 - self._parameters.worth):
                        choice, best, settled = other, seconds, 0
        return Candidate(orders, choice, best)

    def _own(self, sequence: UnitSequence) -> tuple[int, ...]:
        """Groups whose collectives are all launched by this computation."""
        tasks = {node.task for unit in sequence.units for node in unit.launches}
        return tuple(
            number
            for number, group in enumerate(self.stage.space.groups)
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

    def displacements(self, orders: Orders) -> tuple[Displacement, ...]:
        """Displacements of the collectives, the largest first."""
        found: list[Displacement] = []
        for computation in self.changeable:
            if computation.id in orders:
                inner = self._inner(orders)
                plain = self._plain[computation.id]
                sequence = self._decided(with_inner(self._builder, plain, inner))
                order = orders[computation.id].order
                times = self.times_run[computation.id]
                found += displacements_of(sequence, order, times, self.stage.kernel)
        return tuple(sorted(found, key=lambda one: (-one.weight, one.collective)))

    def coarser(self) -> Computations:
        """The same with fewer things told apart."""
        assert self.stage.space.coarser is not None
        return Computations(
            self._builder,
            self.stage.with_space(self.stage.space.coarser),
            self._cluster,
            self._model,
            self._correct,
            self._spare_bytes,
            self._parameters,
        )

    def program(self, orders: Orders) -> Program:
        """The step in some orders."""
        return self._builder.program(self.instructions(orders))

    def allows(self, candidate: Candidate) -> bool:
        """True if a candidate's orders could have been found by this search."""
        options = paths(self.stage)
        return all(
            self.descent(computation, {}, candidate.choice, options)[0].allows(
                candidate.orders[computation.id].order
            )
            for computation in self.changeable
            if computation.id in candidate.orders
        )

    def seconds(self, candidate: Candidate) -> float:
        """Seconds of the step in a candidate's orders, under its choice."""
        stage = self.stage.in_order(self.program(candidate.orders))
        return stage.step_seconds(candidate.choice)

    def on_second_stream(self) -> dict[int, tuple[int, ...]]:
        """By number of a computation old places of launches on the second stream."""
        found = {
            number: tuple(
                place
                for place, instruction in enumerate(computation.sequence or ())
                if instruction.id in self._builder.aside
            )
            for number, computation in enumerate(self._builder.module.scheduled)
        }
        return {number: places for number, places in found.items() if places}

    def sequences(self, orders: Orders) -> dict[int, tuple[int, ...]]:
        """By number of a changed computation: the old place of each instruction."""
        changed: dict[int, tuple[int, ...]] = {}
        for number, computation in enumerate(self._builder.module.scheduled):
            if computation.id in orders:
                assert computation.sequence is not None
                place = {i.id: n for n, i in enumerate(computation.sequence)}
                plain, found = self._plain[computation.id], orders[computation.id].order
                assert plain.is_legal(found), "moves keep orders legal"
                order = plain.instructions(found)
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
    """Runs of each computation in a step; of a branch every arm, once."""
    times: defaultdict[int, int] = defaultdict(int)
    times[module.entry.id] = 1
    for computation in reversed(_inner_first(module)):
        for instruction in computation.sequence or ():
            if instruction.opcode in CALLERS:
                each = times[computation.id] * (trips_of(instruction) or 1)
                for called in instruction.called_ids:
                    times[called] += each
    return times
