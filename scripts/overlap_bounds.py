"""Bounds of a step's time, whatever its order and settings.

limits_of_overlap.py says what they are, and compares plans with them.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import operator
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, cast

import numpy as np
from scipy import optimize
from scipy.sparse import csr_matrix

from lagom_jax.cluster import Cluster
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.replay import price_of
from lagom_jax.hlo.collective import Collective
from lagom_jax.hlo.module import Computation, Instruction
from lagom_jax.options.bound import NOT_A_LINK
from lagom_jax.order.sequence import Inner, Unit, sequence_of
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

    kernels: Counter[Kernel] = dataclasses.field(default_factory=Counter)
    beside: Counter[tuple[Stream, Collective]] = dataclasses.field(
        default_factory=Counter
    )
    """On the streams for collectives."""
    alone: Counter[Collective] = dataclasses.field(default_factory=Counter)
    """On the compute stream."""
    closed: list[tuple[int, Loop]] = dataclasses.field(default_factory=list)
    """Inner loops that launch something and wait for it, each so often."""

    def add(self, block: Block, times: int = 1) -> None:
        """Adds what a block does in so many runs."""
        for node in block:
            if isinstance(node, Loop):
                launches = any(isinstance(one, Launch) for one in nodes_in(node.body))
                if launches and is_closed(node.body):
                    self.closed.append((times * node.trips, node))
                else:
                    self.add(node.body, times * node.trips)
            elif isinstance(node, Run) and isinstance(node.task, Kernel):
                self.kernels[node.task] += times
            elif isinstance(node, Run) and isinstance(node.task, Collective):
                self.alone[node.task] += times
            elif isinstance(node, Launch) and node.stream in _STREAMS:
                assert isinstance(node.task, Collective)
                self.beside[node.stream, node.task] += times
            # What else runs beside the kernels only takes more time.

    def collectives(self) -> Iterator[tuple[Collective, int]]:
        """All collectives, those in inner loops too."""
        yield from self.alone.items()
        for (_, site), times in self.beside.items():
            yield site, times
        for trips, loop in self.closed:
            inner = _Parts()
            inner.add(loop.body, trips)
            yield from inner.collectives()


class BoundKind(enum.Enum):
    """What keeps a step from being shorter."""

    OVERLAP = "overlap"
    """Kernels and collectives slow each other down, wherever they meet."""
    CHAIN = "chain"
    """Some things need others, or share a stream with them."""
    LINK = "link"
    """Bytes of all collectives pass the busiest link."""
    TURN = "turn"
    """The collectives of one communicator run in turn."""


def seconds_at_least(
    builder: Builder, cluster: Cluster, model: CostModel, kinds: Collection[BoundKind]
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
        self,
        builder: Builder,
        stage: Stage,
        model: CostModel,
        kinds: frozenset[BoundKind],
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
        lives = dict.fromkeys(self._builder.module.computations, 0)
        units = sequence_of(self._builder, computation, Inner({}, lives)).units
        needs = _needs(units)
        parts = [_Parts() for _ in units]
        step = self._builder.program()
        for own, unit in zip(parts, units, strict=True):
            if unit.nodes:
                alone = dataclasses.replace(step, body=unit.nodes)
                own.add(decided(alone, self._model).body)
        bounds = [sum(map(self._within, parts))]
        if BoundKind.OVERLAP in self._kinds:
            bounds.append(self._overlap(units, needs, parts, ends_all))
        if BoundKind.CHAIN in self._kinds:
            bounds.append(self._chain(units, needs, ends_all))
        whole = (BoundKind.LINK, self._link), (BoundKind.TURN, self._in_turn)
        bounds += [of(parts) for kind, of in whole if ends_all and kind in self._kinds]
        self._known[computation.id] = float(max(bounds))
        return self._known[computation.id]

    def _within(self, parts: _Parts) -> float:
        """Seconds of the loops that are blocks by themselves."""
        return sum(times * self._trips[loop.name] for times, loop in parts.closed)

    def _called(self, instruction: Instruction) -> list[Computation]:
        if instruction.opcode not in CALLERS:
            return []
        called = self._builder.module.called(instruction)
        return [each for each in called if each.sequence is not None]

    def _overlap(
        self,
        units: Sequence[Unit],
        needs: Sequence[set[int]],
        parts: Sequence[_Parts],
        ends_all: bool,
    ) -> float:
        """Each collective lies where it costs least, beside what does not need it."""
        rows: defaultdict[_Beside, float] = defaultdict(float)
        one_of: dict[Any, Kernel] = {}
        numbers, apart = _kept_apart(units, needs)
        for own, met in zip(parts, apart, strict=True):
            for kernel, times in own.kernels.items():
                seconds, load = self._stage.kernel(kernel)
                rows[_Beside(load, met)] += times * seconds
                one_of.setdefault(load, kernel)
            # What is waited for on the compute stream has others beside it, as a loop.
            fixed = self._within(own) + sum(
                times * self._alone(site) for site, times in own.alone.items()
            )
            if fixed:
                rows[_Beside(None, met)] += fixed
        works = np.array([*rows.values()], float)
        bounds = [works.sum()]
        column = {load: number for number, load in enumerate(one_of)}
        loads = [column.get(row.load, len(column)) for row in rows]
        for stream in _STREAMS if ends_all and rows else ():
            beside: Counter[Collective] = Counter()
            for own in parts:
                for (where, site), times in own.beside.items():
                    if where is stream:
                        beside[site] += times
            if not beside:
                continue
            columns = [
                _columns(self._stage, self._terms, site, [*one_of.values()])
                for site in beside
            ]
            bit = {site: 1 << number for number, site in enumerate(numbers)}
            may_meet = np.array(
                [[not row.apart & bit.get(site, 0) for row in rows] for site in beside]
            )
            times = np.array([*beside.values()], float)
            bounds.append(_least(columns, np.array(loads), may_meet, times, works))
        return max(bounds)

    def _chain(
        self, units: Sequence[Unit], needs: Sequence[set[int]], ends_all: bool
    ) -> float:
        """The longest chain, each task at its fastest and with nothing in its way."""
        ends: dict[int, float] = {}
        arrives: dict[int, float] = {}
        working, flying = 0.0, dict.fromkeys(_STREAMS, 0.0)
        for unit in units:
            now = max((ends[needed] for needed in needs[unit.number]), default=0.0)
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
        return price_of(task, self._fastest).seconds

    def _link(self, parts: Sequence[_Parts]) -> float:
        """What the busiest link needs, under the settings that spare it most."""
        busy: defaultdict[str, float] = defaultdict(float)
        for site, times in (found for own in parts for found in own.collectives()):
            candidates = range(self._stage.candidates_of(site))
            seconds, link = min(self._needed(site, each) for each in candidates)
            if link != NOT_A_LINK:
                busy[link] += times * seconds
        return max(busy.values(), default=0.0)

    def _in_turn(self, parts: Sequence[_Parts]) -> float:
        """What the communicator with the most to do needs, each at its fastest."""
        busy: defaultdict[bytes | None, float] = defaultdict(float)
        for site, times in (found for own in parts for found in own.collectives()):
            busy[site.communicator] += times * self._alone(site)
        return max((busy[whose] for whose in busy if whose is not None), default=0.0)

    def _needed(self, site: Collective, candidate: int) -> tuple[float, str]:
        load = self._stage.load(site, candidate)
        seconds = self._stage.price(site, candidate).seconds
        return seconds * load.link_share, load.link


@dataclasses.dataclass(frozen=True)
class _Beside:
    """Work on the compute stream that the same collectives may lie beside."""

    load: Any
    """Of its kernels; None for what nothing slows down."""
    apart: int
    """Collectives that cannot lie beside it, as bits."""


def _needs(units: Sequence[Unit]) -> list[set[int]]:
    """Units that each takes a value from, or was told to come behind.

    Who writes over whose memory is left out: another order has other buffers.
    """
    unit_of = {i.id: unit.number for unit in units for i in unit.instructions}
    return [
        {
            unit_of[needed]
            for i in unit.instructions
            for needed in (*i.operand_ids, *i.proto.control_predecessor_ids)
            if needed in unit_of
        }
        - {unit.number}
        for unit in units
    ]


def _kept_apart(
    units: Sequence[Unit], needs: Sequence[set[int]]
) -> tuple[list[Task], list[int]]:
    """Collectives, and for each unit those that it cannot meet, as bits.

    The unit needs what waits for them, or they are launched by what needs the unit. Of
    those that the units launch themselves; one that is launched twice is left out.
    """
    launched = Counter(launch.task for unit in units for launch in unit.launches)
    tasks = [task for task, times in launched.items() if times == 1]
    bit = {task: 1 << number for number, task in enumerate(tasks)}
    of_token: dict[int, int] = defaultdict(int)
    for unit in units:
        for launch in unit.launches:
            of_token[launch.token] |= bit.get(launch.task, 0)
    before: list[int] = []
    over: list[int] = []
    """As `before`, with what the unit itself waits for."""
    for unit in units:
        before.append(_either(over[needed] for needed in needs[unit.number]))
        over.append(before[-1] | _either(of_token[token] for token in unit.tokens))
    behind = [0] * len(units)
    for unit in reversed(units):
        begun = behind[unit.number]
        begun |= _either(bit.get(launch.task, 0) for launch in unit.launches)
        for needed in needs[unit.number]:
            behind[needed] |= begun
    return tasks, [one | other for one, other in zip(before, behind, strict=True)]


def _either(bits: Iterable[int]) -> int:
    return functools.reduce(operator.or_, bits, 0)


def _columns(
    stage: Stage, terms: Terms, site: Collective, kernels: list[Kernel]
) -> tuple[np.ndarray, np.ndarray]:
    """By way of doing a collective: its time, and the kernel work done meanwhile.

    The ways are settings times kernels, one of each load, then what nothing slows down,
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
    columns: list[tuple[np.ndarray, np.ndarray]],
    loads: np.ndarray,
    may_meet: np.ndarray,
    times: np.ndarray,
    work: np.ndarray,
) -> float:
    """The linear program's least, columns made as they are needed.

    Args:
        columns: Of each collective, by load.
        loads: The load of each row of work.
        may_meet: By collective and row.
        times: How often each collective is done.
        work: Seconds of each row.
    """
    sites, rows_of_work = len(columns), len(work)
    chosen: list[tuple[int, int, int]] = [
        (site, int(spent[:, -1].argmin()), rows_of_work)
        for site, (spent, _) in enumerate(columns)
    ]
    loads = np.append(loads, -1)
    best = 0.0
    while True:
        costs = [times[s] * columns[s][0][way, loads[k]] for s, way, k in chosen]
        rows, places, values = [], [], []
        for place, (s, way, k) in enumerate(chosen):
            rows.append(s)
            places.append(place)
            values.append(1.0)
            if k < rows_of_work:
                rows.append(sites + k)
                places.append(place)
                values.append(times[s] * columns[s][1][way, loads[k]])
        # Work with nothing beside it.
        rows += range(sites, sites + rows_of_work)
        places += range(len(chosen), len(chosen) + rows_of_work)
        values += [1.0] * rows_of_work
        shape = (sites + rows_of_work, places[-1] + 1)
        found = cast(Any, optimize).linprog(  # whose types take long to infer
            [*costs, *[1.0] * rows_of_work],
            A_eq=csr_matrix((values, (rows, places)), shape),
            b_eq=[*[1.0] * sites, *work],
            method="highs",
        )
        assert found.status == 0, found.message
        prices = found.eqlin.marginals
        worth = np.append(prices[sites:], 0.0)
        missing = 0.0
        for site, (spent, done) in enumerate(columns):
            meets = np.append(may_meet[site], True)
            reduced = times[site] * (spent[:, loads] - done[:, loads] * worth)
            reduced = np.where(meets, reduced - prices[site], np.inf)
            way, row = np.unravel_index(reduced.argmin(), reduced.shape)
            missing += min(0.0, reduced[way, row])
            chosen.append((site, int(way), int(row)))
        # With the prices as they are no column could win more than what is missing.
        best = max(best, float(found.fun) + missing)
        if found.fun - best < _EXACT * found.fun:
            return best
