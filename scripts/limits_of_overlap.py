"""How short a step could become at best, on our model: contention and order included.

    python scripts/limits_of_overlap.py                  # prints a table
    python scripts/limits_of_overlap.py --case moe --json OUT
    python scripts/limits_of_overlap.py --from OUT --docs  # rewrites docs/benchmarks

For each case a plan is made, and every program that was compiled for it is bounded,
whatever the order of its instructions and whatever NCCL is told, by the larger of

- a linear program for each body of a loop, and for what is around the loops. Each
  collective is done in parts, each part under any setting and beside any kernel of its
  body or beside nothing; kernels and collectives have the speeds that the model gives
  them side by side, and each kernel's work must be done. Which needs which is left out.
  What is launched around a loop may be done in the loop's time, free of charge; a body
  that leaves something under way counts as what is around it. Collectives of a stream
  run one after another; where a plan would try a second stream, each is bounded as if
  the other had nothing to do, and the larger bound counts.
- the longest chain of tasks that need each other, or share a stream, each at its
  fastest and with nothing in its way; a loop is one task that takes as long as its own
  bound.

The least of these bounds is what no plan could have gone below with these programs.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from planned_cases import (
    arguments,
    described,
    gathered,
    made_with,
    milliseconds,
    planner_of,
    versions_of,
)
from scipy.optimize import linprog
from scipy.sparse import csr_matrix

from lagom_jax.cluster import Cluster
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.replay import price_of
from lagom_jax.hlo import Module
from lagom_jax.hlo.collective import Collective
from lagom_jax.ordering.sequence import Inner, sequence_of
from lagom_jax.ordering.streams import inside_domains, is_crowded
from lagom_jax.ordering.terms import Terms
from lagom_jax.plan import Candidate, Plan
from lagom_jax.plan.plan import COSTS
from lagom_jax.planning import Planner
from lagom_jax.schedule.build import CALLERS, Builder
from lagom_jax.schedule.program import (
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
from lagom_jax.search.arms import decided
from lagom_jax.search.controls import named
from lagom_jax.search.floor import Fastest
from lagom_jax.search.space import space_of
from lagom_jax.search.stage import Stage

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks" / "limits.md"
SUITE = ("fsdp", "moe", "tp, sliced", "tp")
# The part of a step to which a bound is worked out; it stays a bound.
_EXACT = 1e-4
_STREAMS = (Stream.COLLECTIVE, Stream.ASIDE)


@dataclasses.dataclass(frozen=True)
class Row:
    """One case."""

    case: str
    default_seconds: float
    simple_bound_seconds: float
    """Computation alone, or the busiest link alone, of the program as it is."""
    overlap_seconds: float
    """The least of the linear programs' bounds."""
    chain_seconds: float
    """The longest chain of that program."""
    limit_seconds: float
    """The least bound of a program."""
    plan_seconds: float
    programs: int
    versions: str

    def recovered(self, seconds: float) -> float:
        """The share of what the simple bound promises."""
        return (self.default_seconds - seconds) / (
            self.default_seconds - self.simple_bound_seconds
        )

    @property
    def of_possible(self) -> float:
        """What the plan gains, of what could be gained at best."""
        return (self.default_seconds - self.plan_seconds) / (
            self.default_seconds - self.limit_seconds
        )


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
    kernels, works = list(one_of.values()), np.array([*work.values(), inside])
    bounds = [works.sum()]
    for beside in parts.beside.values():
        columns = [_columns(stage, terms, site, kernels) for site in beside]
        times = np.array(list(beside.values()), float)
        if columns:
            bounds.append(_least(columns, times, works))
    return alone + max(bounds)


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
            done[row, column] = spent[row, column] * rates.kernel
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


def _programs(planner: Planner, plan: Plan) -> Iterator[Module]:
    """What was compiled for a plan, in XLA's own order."""
    seen: set[str] = set()
    for candidate in plan.evidence.candidates:
        options = _options(candidate, plan)
        if candidate.step_seconds is None or options is None:
            continue
        key = repr(sorted(options.items()))
        if key not in seen:
            seen.add(key)
            scheduled, _ = planner.compile(options)
            yield scheduled.module


def _with_streams(module: Module, cluster: Cluster, model: CostModel) -> Builder:
    """With a second stream where the search for an order would try one."""
    builder = Builder(module)
    program = builder.program()
    if is_crowded(program, lambda task: price_of(task, model).seconds):
        return Builder(module, inside_domains(program, cluster))
    return builder


def _options(candidate: Candidate, plan: Plan) -> dict[str, Any] | None:
    """Compiler options; costs and orders change nothing that is bounded here."""
    return {
        name: value
        for name, value in candidate.levers
        if name != COSTS and value is not None
    }


def row_of(case: str) -> Row:
    planner = planner_of(case)
    cluster, model = planner.cluster, CostModel.of(planner.cluster)
    plan = planner.plan(
        progress=lambda what: print(f"{case}: {what}", file=sys.stderr, flush=True)
    )
    found: list[tuple[float, float, float]] = []
    for module in _programs(planner, plan):
        builder = _with_streams(module, cluster, model)
        overlap = overlap_bound(builder.program(), cluster, model)
        chain = chain_bound(builder, cluster, model)
        found.append((max(overlap, chain), overlap, chain))
        print(f"{case}: {found[-1]}", file=sys.stderr, flush=True)
    limit, overlap, chain = min(found)
    return Row(
        case=case,
        default_seconds=plan.evidence.default.step_seconds,
        simple_bound_seconds=plan.evidence.bound_seconds,
        overlap_seconds=overlap,
        chain_seconds=chain,
        limit_seconds=limit,
        plan_seconds=plan.evidence.tuned.step_seconds,
        programs=len(found),
        versions=versions_of(plan),
    )


def table(rows: list[Row]) -> str:
    lines = [
        "| case | default | simple bound | with contention | longest chain | limit "
        "| recovered at the limit | plan | recovered | of what is possible |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        cells = (
            row.case,
            milliseconds(row.default_seconds),
            milliseconds(row.simple_bound_seconds),
            milliseconds(row.overlap_seconds),
            milliseconds(row.chain_seconds),
            milliseconds(row.limit_seconds),
            f"{100 * row.recovered(row.limit_seconds):.0f} %",
            milliseconds(row.plan_seconds),
            f"{100 * row.recovered(row.plan_seconds):.0f} %",
            f"{100 * row.of_possible:.0f} %",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def page(rows: list[Row]) -> str:
    return f"""\
# The limits of overlap

Made by `python scripts/limits_of_overlap.py`: {made_with(rows)}. Everything is \
predicted, on schedules of XLA's real compiler.

The *simple bound* hides all communication free of charge. *With contention* is a linear
program in which each collective is done in parts, each under any setting and beside
any kernel of the loop's body that it is launched in, or none, at the speeds that the
model gives them side by side, in any order.
Where a plan would try two streams for collectives, it is the larger bound of the two,
each as if the other had nothing to do. The *longest chain* is of tasks that need each
other, or that share a stream, at their fastest, loop by loop. The *limit* is the larger
of the two, and the least of all programs that were compiled for the plan: with these
programs no order and no settings make the step shorter. *Recovered* is the share of
what the simple bound promises.
{described(rows)}.

{table(rows)}
"""


def main() -> None:
    asked = arguments("The limits of overlap.", PAGE).parse_args()
    rows = gathered(asked, Row, SUITE, row_of, table)
    if asked.docs:
        PAGE.write_text(page(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
