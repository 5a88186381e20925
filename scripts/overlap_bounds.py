"""Bounds of a step's time, whatever its order and settings: overlap, chains, links.

limits_of_overlap.py says what they are, and compares plans with them.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_matrix

from lagom_jax.cluster import Cluster
from lagom_jax.cost.model import CostModel
from lagom_jax.hlo.collective import Collective
from lagom_jax.hlo.module import Computation, Instruction
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
    Run,
    Stream,
    Task,
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
    """What a block does, and how often."""

    kernels: dict[Kernel, int]
    beside: dict[Stream, dict[Collective, int]]
    """On the streams for collectives."""
    alone: dict[Collective, int]
    """On the compute stream."""
    closed: list[tuple[int, Loop]]
    """Inner loops that launch something and wait for it, each so often."""

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
                    self.closed.append((times * node.trips, node))
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

    def collectives(self) -> Iterator[tuple[Collective, int]]:
        """All collectives, those in inner loops too."""
        for tasks in (self.alone, *self.beside.values()):
            yield from tasks.items()
        for trips, loop in self.closed:
            for site, times in _Parts.of(loop.body).collectives():
                yield site, trips * times


class Bound(enum.Enum):
    """What keeps a step from being shorter."""

    OVERLAP = "overlap"
    """Kernels and collectives slow each other down, wherever they meet."""
    CHAIN = "chain"
    """Some things need others, or share a stream with them."""
    LINK = "link"
    """Bytes of all collectives pass the busiest link."""


def seconds_at_least(
    builder: Builder, cluster: Cluster, model: CostModel, kinds: Collection[Bound]
) -> float:
    """Seconds that a step takes, whatever its order and settings.

    A loop that waits for all that it launches takes, in each trip, as long as the
    largest bound of its body; what is around it is bounded with that.

    Args:
        builder: Of the step.
        cluster: Where it runs: what NCCL can be told there.
        model: What everything takes.
        kinds: The bounds to work out.
    """
    program = builder.program()
    stage = Stage(program, space_of(program, cluster, named("tuner")), model)
    return _Computations(builder, stage, model, frozenset(kinds)).seconds()


class _Computations:
    """Bounds of a module's computations, those that others call first."""

    def __init__(
        self, builder: Builder, stage: Stage, model: CostModel, kinds: frozenset[Bound]
    ) -> None:
        self._builder, self._stage = builder, stage
        self._model, self._kinds = model, kinds
        self._terms = Terms(stage, stage.untouched)
        self._fastest = Fastest(stage)
        self._known: dict[int, float] = {}
        """By id of a computation."""
        self._trips: dict[str, float] = {}
        """By name of a loop, for one trip."""

    def seconds(self) -> float:
        """Of the whole step, which ends when all is done."""
        return self._bound(self._builder.module.entry, ends_all=True)

    def _bound(self, computation: Computation, ends_all: bool) -> float:
        known = self._known.get(computation.id)
        if known is not None:
            return known
        assert computation.sequence is not None
        for instruction in computation.sequence:
            inner = [
                self._bound(called, is_closed(self._builder.block(called)))
                for called in self._called(instruction)
            ]
            if instruction.opcode == "while":
                self._trips[instruction.name] = sum(inner)
        step = self._builder.program()
        block = self._builder.block(computation)
        alone = dataclasses.replace(step, body=block)
        parts = _Parts.of(decided(alone, self._model).body)
        within = sum(times * self._trips[loop.name] for times, loop in parts.closed)
        bounds = [within]
        if Bound.OVERLAP in self._kinds:
            bounds.append(self._overlap(parts, within, ends_all))
        if Bound.CHAIN in self._kinds:
            bounds.append(self._chain(computation, ends_all))
        if Bound.LINK in self._kinds and ends_all:
            bounds.append(self._link(parts))
        self._known[computation.id] = max(bounds)
        return self._known[computation.id]

    def _called(self, instruction: Instruction) -> list[Computation]:
        if instruction.opcode not in CALLERS:
            return []
        called = self._builder.module.called(instruction)
        return [each for each in called if each.sequence is not None]

    def _overlap(self, parts: _Parts, within: float, ends_all: bool) -> float:
        """Each collective lies where it costs least."""
        work: defaultdict[Any, float] = defaultdict(float)
        one_of: dict[Any, Kernel] = {}
        for kernel, times in parts.kernels.items():
            seconds, load = self._stage.kernel(kernel)
            work[load] += times * seconds
            one_of.setdefault(load, kernel)
        alone = sum(
            times * self._fastest.collective(site).seconds
            for site, times in parts.alone.items()
        )
        # What is waited for on the compute stream has others beside it, as a loop does.
        kernels = list(one_of.values())
        works = np.array([*work.values(), within + alone])
        bounds = [works.sum()]
        for beside in parts.beside.values() if ends_all else ():
            columns = [
                _columns(self._stage, self._terms, site, kernels) for site in beside
            ]
            times = np.array(list(beside.values()), float)
            if columns:
                bounds.append(_least(columns, times, works))
        return max(bounds)

    def _chain(self, computation: Computation, ends_all: bool) -> float:
        """The longest chain, each task at its fastest and with nothing in its way."""
        lives = dict.fromkeys(self._builder.module.computations, 0)
        sequence = sequence_of(self._builder, computation, Inner({}, lives))
        ends: dict[int, float] = {}
        arrives: dict[int, float] = {}
        working, flying = 0.0, dict.fromkeys(_STREAMS, 0.0)
        for unit in sequence.units:
            now = max((ends[needed] for needed in unit.needs), default=0.0)
            inner = [
                self._known[called.id]
                for instruction in unit.instructions
                for called in self._called(instruction)
            ]
            for node in unit.nodes:
                taken = 0.0
                if isinstance(node, Run):
                    taken = self._alone(node.task)
                elif isinstance(node, Loop):
                    taken = node.trips * sum(inner)
                elif isinstance(node, Branch):
                    taken = min(inner, default=0.0)
                elif isinstance(node, Launch):
                    seconds = self._alone(node.task)
                    arrives[node.token] = now + seconds
                    if node.stream in flying:
                        flying[node.stream] += seconds
                elif isinstance(node, Wait):
                    met = (arrives.get(token, 0.0) for token in node.tokens)
                    now = max(now, *met)
                now += taken
                working += taken
            ends[unit.number] = now
        # What a body leaves under way may arrive in the next trip.
        under_way = (*arrives.values(), *flying.values()) if ends_all else ()
        return max((working, *ends.values(), *under_way))

    def _alone(self, task: Task) -> float:
        if isinstance(task, Kernel):
            return self._fastest.kernel(task).seconds
        return self._fastest.collective(task).seconds

    def _link(self, parts: _Parts) -> float:
        """What the busiest link needs, under the settings that spare it most."""
        busy: defaultdict[str, float] = defaultdict(float)
        for site, times in parts.collectives():
            candidates = range(self._stage.candidates_of(site))
            seconds, link = min(self._needed(site, each) for each in candidates)
            if link != NOT_A_LINK:
                busy[link] += times * seconds
        return max(busy.values(), default=0.0)

    def _needed(self, site: Collective, candidate: int) -> tuple[float, str]:
        load = self._stage.load(site, candidate)
        seconds = self._stage.price(site, candidate).seconds
        return seconds * load.link_share, load.link


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
