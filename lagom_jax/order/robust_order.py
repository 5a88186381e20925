"""An order in which a step is behind another by no model, where one can be found.

An order that is found under one model may lose by another what it gives by this one. So
it is looked for under several at once, from one that the likeliest has found.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from lagom_jax.cluster import Cluster
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.prices import Prices
from lagom_jax.hlo.module import Module
from lagom_jax.hlo.read import collection_paused
from lagom_jax.order.computations import Candidate, Computations, Orders
from lagom_jax.order.find import Ordering
from lagom_jax.order.options import paths
from lagom_jax.order.parameters import PARAMETERS, SearchParameters
from lagom_jax.order.robust_replay import StepBeside, worth
from lagom_jax.program.build import Builder
from lagom_jax.settings.controls import FINE, Controls, Grid
from lagom_jax.settings.frontier import Point
from lagom_jax.settings.space import Choice, space_of
from lagom_jax.settings.stage import Stage

MOST_ASKED: Final = 3
"""Models that are asked for an order beside the likeliest, unless it is said."""


class ModelBeside(NamedTuple):
    """A model, and what a step may take by it."""

    model: CostModel
    correct: Callable[[Prices], Prices]
    """Corrects its prices by the user's own measurements."""
    limit: float
    """Seconds of another step, which this one should not be behind."""


def robust_order(
    module: Module,
    cluster: Cluster,
    models: Sequence[ModelBeside],
    begin: Ordering,
    *,
    controls: Controls,
    grid: Grid = FINE,
    spare_bytes: int | None = None,
    evaluations: int,
    most: int = MOST_ASKED,
    parameters: SearchParameters = PARAMETERS,
) -> Ordering:
    """Looks for an order that is behind another step by none of some models.

    Args:
        module: A module with a schedule.
        cluster: The hardware.
        models: The likeliest first; beside it those are asked, of the others, that find
            the beginning furthest behind.
        begin: An order of the module, where the search begins.
        controls: Settings of NCCL, and collectives that it can tell apart.
        grid: Values that are tried.
        spare_bytes: As for `find_order`.
        evaluations: Orders that are replayed at most, each by all that are asked.
        most: Models that are asked beside the likeliest, at most.
        parameters: Of the search.

    Returns:
        The best; its seconds are those of the likeliest model.

    Example:
        >>> from lagom_jax.hlo import read_module
        >>> from lagom_jax.hlo.text import parse_text
        >>> from lagom_jax.order import find_order
        >>> from lagom_jax.settings.controls import named
        >>> head = "HloModule m, is_scheduled=true"
        >>> text = chr(10).join((head, "ENTRY e { ROOT x = f32[] parameter(0) }"))
        >>> module, h100 = read_module(parse_text(text)), Cluster.parse("h100:1x8")
        >>> model, tuner = CostModel.of(h100), named("tuner")
        >>> begin = find_order(module, h100, model, controls=tuner)
        >>> asked = [ModelBeside(model, lambda prices: prices, 1.0)]
        >>> robust_order(
        ...     module, h100, asked, begin, controls=tuner, evaluations=9
        ... ).sequences
        {}
    """
    builder = Builder(module, _aside(module, begin))
    program = builder.program()
    likeliest = models[0]
    model, correct = likeliest.model, likeliest.correct
    space = space_of(
        program, cluster, controls, grid, model.constants.nccl, model.carried
    )
    stage = Stage(program, space, model, correct)
    search = Computations(
        builder, stage, cluster, model, correct, spare_bytes, parameters
    )
    with collection_paused():
        robust = _RobustSearch(search, models)
        robust.ask(begin, most)
        found = robust.improved(begin, evaluations, parameters)
    return Ordering(
        sequences=search.sequences(found.orders),
        on_second_stream=search.on_second_stream(),
        before_seconds=begin.before_seconds,
        after_seconds=search.seconds(found),
        live_bytes_change=search.live_bytes(found.orders) - search.live_bytes({}),
        evaluations=search.evaluations,
        displacements=search.displacements(found.orders),
    )


class _RobustSearch:
    """A search under several models."""

    def __init__(self, search: Computations, models: Sequence[ModelBeside]) -> None:
        self._search = search
        others = [search.stage.under(one.model, one.correct) for one in models[1:]]
        self._stages = [search.stage, *others]
        self._limits = [one.limit for one in models]

    def ask(self, begin: Ordering, most: int) -> None:
        """Asks so many beside the likeliest, which find an order furthest behind."""
        orders = self._search.orders_of(begin.sequences)
        steps = self._steps(orders, self._search.stage.untouched)
        others = sorted(range(1, len(steps)), key=lambda n: -steps[n].share)
        asked = [0, *others[:most]]
        self._stages = [self._stages[place] for place in asked]
        self._limits = [self._limits[place] for place in asked]

    def improved(
        self, begin: Ordering, evaluations: int, parameters: SearchParameters
    ) -> Candidate:
        search = self._search
        orders = search.orders_of(begin.sequences)
        first = search.stage.untouched
        best = Candidate(orders, first, self._worth(orders, first))
        options = paths(search.stage)
        for number in range(parameters.rounds):
            share = evaluations // parameters.rounds
            found = self._round(best, options, share, number)
            best = min(best, found, key=lambda candidate: candidate.seconds)
        return best

    def _round(
        self,
        begin: Candidate,
        options: Sequence[Sequence[Point]],
        evaluations: int,
        number: int,
    ) -> Candidate:
        """All computations once more, inner ones first; to begin with their settings.

        Those that were found along with an order are not known.
        """
        search, orders, choice = self._search, dict(begin.orders), begin.choice
        excess = [
            search.descent(computation, orders, choice, options)[0].excess_seconds
            * search.times_run[computation.id]
            for computation in search.changeable
        ]
        excess = [max(0.0, one) for one in excess]
        total = sum(excess) or 1.0
        for computation, part in zip(search.changeable, excess, strict=True):
            steps = self._steps(orders, choice)
            beside = [*zip(self._stages, steps, strict=True)]
            descent, terms = search.descent(
                computation, orders, choice, options, beside
            )
            share = int(evaluations * part / total)
            orders[computation.id] = descent.run(
                share, random.Random(number), settings_first=number == 0
            )
            choice = tuple(terms.choice)
            search.evaluations += descent.evaluations
        return Candidate(orders, choice, self._worth(orders, choice))

    def _steps(self, orders: Orders, choice: Choice) -> list[StepBeside]:
        program = self._search.program(orders)
        return [
            StepBeside(stage.in_order(program).step_seconds(choice), limit)
            for stage, limit in zip(self._stages, self._limits, strict=True)
        ]

    def _worth(self, orders: Orders, choice: Choice) -> float:
        if not self._search.fits(orders):
            return float("inf")
        return worth([step.share for step in self._steps(orders, choice)])


def _aside(module: Module, begin: Ordering) -> list[int]:
    """Instructions whose collectives are on the second stream in an order."""
    scheduled = module.scheduled
    return [
        (scheduled[number].sequence or ())[place].id
        for number, places in begin.on_second_stream.items()
        for place in places
    ]
