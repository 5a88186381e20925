"""Finds a better order for a compiled step, and says what it gives."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping
from typing import Final

from lagom_jax.cluster import Cluster
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.prices import Prices
from lagom_jax.hlo.module import Module
from lagom_jax.ordering.computations import Candidate, Computations
from lagom_jax.ordering.moved import Moved
from lagom_jax.ordering.options import paths
from lagom_jax.ordering.streams import inside_domains
from lagom_jax.schedule.build import Builder
from lagom_jax.schedule.program import Program
from lagom_jax.search.controls import FINE, Controls, Grid
from lagom_jax.search.lagom import Lagom
from lagom_jax.search.space import Choice, space_of
from lagom_jax.search.stage import Stage

EVALUATIONS: Final = 150_000
"""How many orders are replayed at most, if nothing else is said."""
_PACES = (1.0, 1.5, 2.5)
_ROUNDS = 2
_PER_START = 10_000
"""Evaluations below which another start is not worth its while."""
# The part of the evaluations that goes to descents from several starts; the others are
# spent near the best of what these find.
_FIRST_LOOK = 0.5
# Beyond the evaluations of coarser controls, which come to their own end first: a
# quarter finds what there is near that end, and another quarter next to nothing.
_REFINING = 0.25


@dataclasses.dataclass(frozen=True, slots=True)
class Ordering:
    """A better order for a step. All times are predicted."""

    sequences: Mapping[int, tuple[int, ...]]
    """For computations that changed, by their number among those that have a sequence:
    the place in the old sequence of each instruction of the new one."""
    aside: Mapping[int, tuple[int, ...]]
    """By the same numbers: the places in the old sequence of what launches collectives
    on the second stream for them."""
    program: Program
    """The step in the new order."""
    before_seconds: float
    """The step in the given order, with Lagom's settings."""
    after_seconds: float
    """The step in the new order, with settings that were chosen along with it."""
    live_bytes_change: int
    """What the estimate of the memory in use grows by."""
    evaluations: int
    """Orders that were replayed."""
    moves: tuple[Moved, ...]
    """What became of the collectives, those that moved most first."""


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
        evaluations: How many orders are replayed at most; where
            coarser controls come first, a quarter more.
        streams: Whether collectives inside of domains may have a stream of their own.

    Raises:
        HloError: The module has no schedule.

    Example:
        >>> from lagom_jax.hlo import read_module
        >>> from lagom_jax.hlo.text import parse_text
        >>> from lagom_jax.search.controls import named
        >>> head = "HloModule m, is_scheduled=true"
        >>> text = chr(10).join((head, "ENTRY e { ROOT x = f32[] parameter(0) }"))
        >>> module, h100 = read_module(parse_text(text)), Cluster.parse("h100:1x8")
        >>> find_order(module, h100, CostModel.of(h100), controls=named("tuner")).moves
        ()
    """
    given = Builder(module)
    program = given.program()
    space = space_of(program, cluster, controls, grid)
    stage = Stage(program, space, model, correct)
    first = Lagom().choose(stage).choice
    before = stage.score(first).step_seconds
    builder = given
    aside = inside_domains(program, cluster) if streams else frozenset[int]()
    if aside:
        builder = Builder(module, aside)
        beside = builder.program()
        space = space_of(beside, cluster, controls, grid)
        stage = Stage(beside, space, model, correct)

    def search_in(stage: Stage) -> Computations:
        return Computations(builder, stage, cluster, model, correct, spare_bytes)

    search = search_in(stage)
    best, tried = _found(search, search_in, first, evaluations)
    after = builder.program(search.instructions(best.orders))
    if best.seconds >= before:
        best, after = Candidate({}, first, before), program
        aside = frozenset[int]()
    return Ordering(
        sequences=search.sequences(best.orders),
        aside=search.places(aside),
        program=after,
        before_seconds=before,
        after_seconds=best.seconds,
        live_bytes_change=search.live_bytes(best.orders) - search.live_bytes({}),
        evaluations=tried,
        moves=search.moves(best.orders),
    )


def _found(
    search: Computations,
    search_in: Callable[[Stage], Computations],
    first: Choice,
    evaluations: int,
) -> tuple[Candidate, int]:
    """The best of what can be set, and the evaluations for it.

    Where coarser controls can be searched, their best comes first and is where the
    finer search begins, which therefore never ends up with less.
    """
    stage = search.stage
    if stage.space.coarser is None:
        return _searched(search, first, evaluations), search.evaluations
    below = search_in(stage.with_space(stage.space.coarser))
    usual = Lagom().choose(below.stage).choice
    coarse, tried = _found(below, search_in, usual, evaluations)
    best, options = coarse.carried(stage.space), paths(stage)
    for number in range(_ROUNDS):
        found = search.improved(
            best,
            options,
            int(_REFINING * evaluations) // _ROUNDS,
            random.Random(number),
            settings_first=number == 0,
        )
        best = min(best, found, key=lambda candidate: candidate.seconds)
    return best, tried + search.evaluations


def _searched(search: Computations, first: Choice, evaluations: int) -> Candidate:
    """The best from several starts, and near the best of those."""
    stage = search.stage
    best = Candidate({}, first, stage.score(first).step_seconds)
    found: list[Candidate] = []
    options = paths(stage)
    fast, *slower = (search.at_pace(first, options, pace) for pace in _PACES)
    starts = [
        search.eager(first, options),
        search.eager(fast, options),
        Candidate({}, first, 0.0),
        *(search.eager(choice, options) for choice in slower),
    ]
    # With few evaluations one search that comes to its end beats five that do not.
    first_look = int(evaluations * _FIRST_LOOK)
    starts = starts[: max(1, first_look // _PER_START)]
    for start in starts:
        share = first_look // len(starts)
        found.append(search.improved(start, options, share))
    found.append(search.best_of_each(found, options))
    for number in range(_ROUNDS):
        best = min(best, *found, key=lambda candidate: candidate.seconds)
        dice = random.Random(number)
        share = max(0, evaluations - search.evaluations) // (_ROUNDS - number)
        found.append(search.improved(best, options, share, dice))
    return min(best, *found, key=lambda candidate: candidate.seconds)
