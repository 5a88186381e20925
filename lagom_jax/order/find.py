"""Finds a better order for a compiled step, and says what it gives."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from lagom_jax.cluster import Cluster
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.prices import Prices
from lagom_jax.cost.replay import price_of
from lagom_jax.hlo.module import Module
from lagom_jax.hlo.read import collection_paused
from lagom_jax.order.computations import Candidate, Computations
from lagom_jax.order.displacements import Displacement
from lagom_jax.order.options import paths
from lagom_jax.order.parameters import PARAMETERS, SearchParameters
from lagom_jax.order.streams import inside_domains, is_crowded, most_sms_in_any_order
from lagom_jax.program.build import Builder
from lagom_jax.settings.controls import FINE, Controls, Grid
from lagom_jax.settings.frontier import Point
from lagom_jax.settings.lagom import Lagom
from lagom_jax.settings.space import Choice, space_of
from lagom_jax.settings.stage import Stage

EVALUATIONS: Final = 150_000
"""Orders that are replayed at most, if nothing else is said."""


@dataclasses.dataclass(frozen=True, slots=True)
class Ordering:
    """A better order for a step. All times are predicted."""

    sequences: Mapping[int, tuple[int, ...]]
    """For computations that changed, by their number among those that have a sequence:
    the place in the old sequence of each instruction of the new one."""
    on_second_stream: Mapping[int, tuple[int, ...]]
    """By the same numbers: the places in the old sequence of what launches collectives
    on the second stream for them."""
    before_seconds: float
    """The step in the given order, with Lagom's settings."""
    after_seconds: float
    """The step in the new order, with settings that were chosen along with it."""
    live_bytes_change: int
    """Bytes that the estimate of the memory in use grows by."""
    evaluations: int
    """Orders that were replayed."""
    displacements: tuple[Displacement, ...]
    """Of the collectives, the largest first."""


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
    streams: bool = False,
    parameters: SearchParameters = PARAMETERS,
) -> Ordering:
    """Looks for an order in which the step is shorter than in the given one.

    Args:
        module: A module with a schedule.
        cluster: The hardware.
        model: Prices and contention.
        controls: Settings of NCCL, and collectives that it can tell apart.
        grid: Values that are tried.
        correct: Corrects the model's prices by the user's own measurements.
        spare_bytes: Bytes that the estimate of live memory may grow by; None for any
            growth.
        evaluations: Orders that are replayed at most; where coarser controls come
            first, a quarter more.
        streams: Collectives inside of domains may have a stream of their own.
        parameters: Of the search.

    Raises:
        HloError: The module has no schedule.

    Example:
        >>> from lagom_jax.hlo import read_module
        >>> from lagom_jax.hlo.text import parse_text
        >>> from lagom_jax.settings.controls import named
        >>> head = "HloModule m, is_scheduled=true"
        >>> text = chr(10).join((head, "ENTRY e { ROOT x = f32[] parameter(0) }"))
        >>> module, h100 = read_module(parse_text(text)), Cluster.parse("h100:1x8")
        >>> ordering = find_order(
        ...     module, h100, CostModel.of(h100), controls=named("tuner")
        ... )
        >>> ordering.sequences, ordering.displacements
        ({}, ())
    """
    given = Builder(module)
    program = given.program()

    def search_in(builder: Builder) -> Computations:
        step = builder.program()
        space = space_of(
            step, cluster, controls, grid, model.constants.nccl, model.carried
        )
        stage = Stage(step, space, model, correct)
        return Computations(
            builder, stage, cluster, model, correct, spare_bytes, parameters
        )

    on_one = search_in(given)
    searches = [on_one]
    first = Lagom().choose(on_one.stage).choice
    before = on_one.stage.step_seconds(first)
    prices = correct(model)
    if streams and is_crowded(program, lambda task: price_of(task, prices).seconds):
        second = inside_domains(program, cluster)
        usual = on_one.stage.untouched
        held = most_sms_in_any_order(program, on_one.stage.sms_of(usual), second)
        if second and held <= cluster.gpu.sm_count:
            searches.append(search_in(Builder(module, second)))
    with collection_paused():
        found = _found(searches, first, evaluations, parameters)
    best, search = found.best, found.search
    if search is not on_one and on_one.allows(best):
        seconds = on_one.seconds(best)
        if seconds * (1 - parameters.worth_of_streams) <= best.seconds:
            best, search = dataclasses.replace(best, seconds=seconds), on_one
    if best.seconds >= before:
        best, search = Candidate({}, first, before), on_one
    return Ordering(
        sequences=search.sequences(best.orders),
        on_second_stream=search.on_second_stream(),
        before_seconds=before,
        after_seconds=best.seconds,
        live_bytes_change=search.live_bytes(best.orders) - search.live_bytes({}),
        evaluations=found.evaluations,
        displacements=search.displacements(best.orders),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Found:
    """The best of some searches."""

    best: Candidate
    search: Computations
    evaluations: int
    """Of all of them."""


def _found(
    searches: Sequence[Computations],
    first: Choice,
    evaluations: int,
    parameters: SearchParameters,
) -> _Found:
    """The best of what can be set.

    Where coarser controls can be searched, their best comes first and is where the
    finer search begins, which therefore never ends up with less.

    Args:
        searches: With one stream for collectives, and perhaps with two.
        first: Lagom's choice for the given order.
        evaluations: Orders that may be replayed.
        parameters: Of the search.
    """
    if searches[0].stage.space.coarser is None:
        return _searched(searches, first, evaluations, parameters)
    below = [search.coarser() for search in searches]
    usual = Lagom().choose(below[0].stage).choice
    coarse = _found(below, usual, evaluations, parameters)
    search = searches[below.index(coarse.search)]
    best, options = coarse.best.carried(search.stage.space), paths(search.stage)
    for number in range(parameters.rounds):
        found = search.improved(
            best,
            options,
            int(parameters.refining * evaluations) // parameters.rounds,
            random.Random(number),
            settings_first=number == 0,
        )
        best = min(best, found, key=_seconds)
    return _Found(best, search, coarse.evaluations + search.evaluations)


def _searched(
    searches: Sequence[Computations],
    first: Choice,
    evaluations: int,
    parameters: SearchParameters,
) -> _Found:
    """The best from several starts, and near the best of those."""
    first_look = int(evaluations * parameters.first_look) // len(searches)
    if len(searches) > 1 and first_look < parameters.compared * parameters.per_start:
        # Two that do not come to their ends say nothing about which is better.
        return _searched(searches[-1:], first, evaluations, parameters)
    ways = [paths(search.stage) for search in searches]
    seen = [
        _from_starts(search, options, first, first_look, parameters)
        for search, options in zip(searches, ways, strict=True)
    ]
    search, options, found = searches[0], ways[0], seen[0]
    for number in range(1, len(searches)):
        if _least(seen[number]) < _least(found) * (1 - parameters.worth_of_streams):
            search, options, found = searches[number], ways[number], seen[number]
    best = min(found, key=_seconds)
    spent = sum(one.evaluations for one in searches)
    for number in range(parameters.rounds):
        before = search.evaluations
        share = max(0, evaluations - spent) // (parameters.rounds - number)
        better = search.improved(best, options, share, random.Random(number))
        best = min(best, better, key=_seconds)
        spent += search.evaluations - before
    return _Found(best, search, spent)


def _from_starts(
    search: Computations,
    options: Sequence[Sequence[Point]],
    first: Choice,
    evaluations: int,
    parameters: SearchParameters,
) -> list[Candidate]:
    """The given order, and what the search finds from several starts."""
    # With few evaluations one search that comes to its end beats five that do not.
    count = min(2 + len(parameters.paces), max(1, evaluations // parameters.per_start))
    found = [
        search.improved(start, options, evaluations // count)
        for start in itertools.islice(
            _starts(search, first, options, parameters.paces), count
        )
    ]
    found.append(search.best_of_each(found, options))
    return [Candidate({}, first, search.stage.step_seconds(first)), *found]


def _starts(
    search: Computations,
    first: Choice,
    options: Sequence[Sequence[Point]],
    paces: Sequence[float],
) -> Iterator[Candidate]:
    fast, *slower = paces
    yield search.eager(first, options)
    yield search.eager(search.at_pace(first, options, fast), options)
    yield Candidate({}, first, 0.0)
    for pace in slower:
        yield search.eager(search.at_pace(first, options, pace), options)


def _seconds(candidate: Candidate) -> float:
    return candidate.seconds


def _least(candidates: Sequence[Candidate]) -> float:
    return min(map(_seconds, candidates))
