"""Bounds of a step's time, whatever its order and settings: overlap, chains, links.

limits_of_overlap.py says what they are, and compares plans with them.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_matrix

from lagom_jax.cluster import Cluster
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.replay import replay
from lagom_jax.hlo.collective import Collective
from lagom_jax.options.bound import NOT_A_LINK
from lagom_jax.order.sequence import Inner, sequence_of
from lagom_jax.order.terms import Terms
from lagom_jax.program.build import CALLERS, Builder
from lagom_jax.program.program import (
    Block,
    Branch,
    Kernel,
    Launch,
    Loop,
    Program,
    Run,
    Stream,
    Wait,
    is_closed,
    nodes_in,
)
from lagom_jax.settings.arms import decided
from lagom_jax.settings.controls import named
from lagom_jax.settings.floor import Fastest
from lagom_jax.settings.space import space_of
from lagom_jax.settings.stage import Stage

# The part of a step to which a bound is worked out; it stays a bound.
_EXACT = 1e-4
_STREAMS = (Stream.COLLECTIVE, Stream.ASIDE)


@dataclasses.dataclass
class _Parts:
    """What a step does, and how often."""

    kernels: dict[Kernel, int]
    beside: dict[Stream, dict[Collective, int]]
    """On the streams for collectives."""
    alone: dict[Collective, int]
    """On the compute stream."""
    bodies: list[tuple[int, Block]]
    """Of inner loops, that something is launched and waited for in; each so often."""

    @classmethod
    def of(cls, block: Block) -> _Parts:
        beside: dict[Stream, dict[Collective, int]]
        beside = {stream: defaultdict(int) for stream in _STREAMS}
        parts = cls(defaultdict(int), beside, defaultdict(int), [])
        parts._add(block, 1)
        return parts

    def _add(self, block: Block, times: int) -> None:
        for node in block:
            if isinstance(node, Loop):
                launches = any(isinstance(one, Launch) for one in nodes_in(node.body))
                if launches and is_closed(node.body):
                    self.bodies.append((times * node.trips, node.body))
                else:
                    self._add(node.body, times * node.trips)
            elif isinstance(node, Run) and isinstance(node.task, Kernel):
                self.kernels[node.task] += times
            elif isinstance(node, Run) and isinstance(node.task, Collective):
                self.alone[node.task] += times
            elif isinstance(node, Launch) and node.stream in _STREAMS:
                assert isinstance(node.task, Collective)
                self.beside[node.stream][node.task] += times
            # What else runs beside the kernels only takes more time.


def overlap_bound(program: Program, cluster: Cluster, model: CostModel) -> float:
    """Seconds of a step in which each collective lies where it costs least."""
    stage = Stage(program, space_of(program, cluster, named("tuner")), model)
    terms = Terms(stage, stage.untouched)
    return _bound_of(decided(program, model).body, stage, terms)


def _bound_of(block: Block, stage: Stage, terms: Terms) -> float:
    parts = _Parts.of(block)
    inside = sum(times * _bound_of(body, stage, terms) for times, body in parts.bodies)
    work: defaultdict[Any, float] = defaultdict(float)
    one_of: dict[Any, Kernel] = {}
    for kernel, times in parts.kernels.items():
        seconds, load = stage.kernel(kernel)
        work[load] += times * seconds
        one_of.setdefault(load, kernel)
    alone = sum(
        times * Fastest(stage).collective(site).seconds
        for site, times in parts.alone.items()
    )
    # What is waited for on the compute stream has others beside it, as a loop does.
    kernels, works = list(one_of.values()), np.array([*work.values(), inside + alone])
    bounds = [works.sum()]
    for beside in parts.beside.values():
        columns = [_columns(stage, terms, site, kernels) for site in beside]
        times = np.array(list(beside.values()), float)
        if columns:
            bounds.append(_least(columns, times, works))
    return max(bounds)


def _columns(
    stage: Stage, terms: Terms, site: Collective, kernels: list[Kernel]
) -> tuple[np.ndarray, np.ndarray]:
    """By way of doing a collective: its time, and the kernel work done meanwhile.

    The ways are settings times kernels, then inner loops, which nothing slows down,
    then nothing. Of settings with as many channels and as much in flight, which are in
    the kernels' way alike, the fastest is the cheapest.
    """
    group = terms.group(site)
    fastest: dict[tuple[int, int], tuple[float, int]] = {}
    for candidate in range(stage.candidates_of(site)):
        load = stage.load(site, candidate)
        found = stage.price(site, candidate).seconds, candidate
        footprint = load.channels, load.chunk_bytes
        fastest[footprint] = min(found, fastest.get(footprint, found))
    spent = np.empty((len(fastest), len(kernels) + 2))
    done = np.zeros_like(spent)
    for row, (seconds, candidate) in enumerate(fastest.values()):
        if group is not None:
            terms.choose(group, candidate)
        terms.collective(site)
        spent[row, -2:] = done[row, -2] = seconds
        for column, kernel in enumerate(kernels):
            rates = terms.rates(kernel, (site,))
            spent[row, column] = seconds / rates.flying[0]
            done[row, column] = spent[row, column] * rates.running
    return spent, done


def _least(
    columns: list[tuple[np.ndarray, np.ndarray]], times: np.ndarray, work: np.ndarray
) -> float:
    """The linear program's least, columns made as they are needed."""
    sites, kernels = len(columns), len(work)
    chosen: list[tuple[int, int, int]] = [
        (site, int(spent[:, -1].argmin()), kernels)
        for site, (spent, _) in enumerate(columns)
    ]
    while True:
        costs = [times[s] * columns[s][0][way, k] for s, way, k in chosen]
        rows, places, values = [], [], []
        for place, (s, way, k) in enumerate(chosen):
            rows.append(s)
            places.append(place)
            values.append(1.0)
            if k < kernels:
                rows.append(sites + k)
                places.append(place)
                values.append(times[s] * columns[s][1][way, k])
        # A kernel with nothing beside it.
        rows += range(sites, sites + kernels)
        places += range(len(chosen), len(chosen) + kernels)
        values += [1.0] * kernels
        matrix = csr_matrix((values, (rows, places)), (sites + kernels, places[-1] + 1))
        found: Any = linprog(
            [*costs, *[1.0] * kernels],
            A_eq=matrix,
            b_eq=[*[1.0] * sites, *work],
            method="highs",
        )
        assert found.status == 0, found.message
        prices = found.eqlin.marginals
        worth = np.append(prices[sites:], 0.0)
        missing = 0.0
        for site, (spent, done) in enumerate(columns):
            reduced = times[site] * (spent - done * worth) - prices[site]
            way, kernel = np.unravel_index(reduced.argmin(), reduced.shape)
            missing += min(0.0, reduced[way, kernel])
            chosen.append((site, int(way), int(kernel)))
        # With the prices as they are no column could win more than this.
        if -missing < _EXACT * found.fun:
            return float(found.fun) + missing


def link_bound(program: Program, cluster: Cluster, model: CostModel) -> float:
    """Seconds that the busiest link needs, under the settings that spare it most."""
    stage = Stage(program, space_of(program, cluster, named("tuner")), model)
    busy: defaultdict[str, float] = defaultdict(float)

    def needed(site: Collective, candidate: int) -> tuple[float, str]:
        load = stage.load(site, candidate)
        return stage.price(site, candidate).seconds * load.link_share, load.link

    for site, figures in replay(program, model).collectives().items():
        candidates = range(stage.candidates_of(site))
        seconds, link = min(needed(site, candidate) for candidate in candidates)
        if link != NOT_A_LINK:
            busy[link] += figures.executions * seconds
    return max(busy.values(), default=0.0)


def chain_bound(builder: Builder, cluster: Cluster, model: CostModel) -> float:
    """Seconds of the longest chain, of the kernels, or of the collectives, by loops."""
    module, program = builder.module, builder.program()
    stage = Stage(program, space_of(program, cluster, named("tuner")), model)
    fastest = Fastest(stage)
    known: dict[int, float] = {}

    def seconds_of(task: Kernel | Collective) -> float:
        price = (
            fastest.kernel(task)
            if isinstance(task, Kernel)
            else fastest.collective(task)
        )
        return price.seconds

    def bound(computation: Any) -> float:
        if computation.id in known:
            return known[computation.id]
        for instruction in computation.sequence:
            if instruction.opcode in CALLERS:
                for called in module.called(instruction):
                    if called.sequence is not None:
                        bound(called)
        lives = dict.fromkeys(module.computations, 0)
        sequence = sequence_of(builder, computation, Inner({}, lives))
        ends: dict[int, float] = {}
        arrives: dict[int, float] = {}
        working, flying = 0.0, dict.fromkeys(_STREAMS, 0.0)
        for unit in sequence.units:
            now = max((ends[needed] for needed in unit.needs), default=0.0)
            inner = [known[i] for i in _called(unit.instructions) if i in known]
            for node in unit.nodes:
                taken = 0.0
                if isinstance(node, Run):
                    taken = seconds_of(node.task)
                elif isinstance(node, Loop):
                    taken = node.trips * sum(inner)
                elif isinstance(node, Branch):
                    taken = min(inner, default=0.0)
                elif isinstance(node, Launch):
                    seconds = seconds_of(node.task)
                    arrives[node.token] = now + seconds
                    if node.stream in flying:
                        flying[node.stream] += seconds
                elif isinstance(node, Wait):
                    met = (arrives.get(token, 0.0) for token in node.tokens)
                    now = max(now, *met)
                now += taken
                working += taken
            ends[unit.number] = now
        chain = max((*ends.values(), *arrives.values()), default=0.0)
        known[computation.id] = max(chain, working, *flying.values())
        return known[computation.id]

    return bound(module.entry)


def _called(instructions: Iterable[Any]) -> Iterator[int]:
    for instruction in instructions:
        if instruction.opcode in CALLERS:
            yield from instruction.called_ids
