"""Whether a few compiles find what many would: a plan beside a sweep of candidates.

    python scripts/bench_sweep.py --case fsdp            # prints a table
    python scripts/bench_sweep.py --json OUT             # and writes the rows as JSON
    python scripts/bench_sweep.py --docs  # rewrites its page
    python scripts/bench_sweep.py --from OUT --docs      # from rows measured before

Whole it takes about an hour on two cores. Half of the candidates of a sweep are sets of
XLA's options, drawn evenly from a table that knows nothing of the program; the others
are the same sets with our costs as XLA's profile. Each is compiled and replayed with
settings of its own, as a plan's candidates are, unless even with every collective at
its fastest and nothing in anything's way it would not be the best; the order stays
XLA's, so that both sides use the same levers. Everything is predicted, on real
schedules.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from planned_cases import (
    arguments,
    described,
    gathered,
    made_with,
    milliseconds,
    planner_of,
    versions_of,
)

from lagom_jax.compile import CompiledStep
from lagom_jax.cost.replay import replay
from lagom_jax.cost.timeline import Timeline
from lagom_jax.errors import LagomError
from lagom_jax.options import cost_profile, structure_of
from lagom_jax.plan.evidence import COSTS
from lagom_jax.planner import Budget, Planner, Request
from lagom_jax.planner.judge import Judge
from lagom_jax.program.build import build_program
from lagom_jax.scheduled import Scheduled
from lagom_jax.settings.controls import named
from lagom_jax.settings.floor import floor_seconds
from lagom_jax.settings.space import space_of
from lagom_jax.settings.stage import Stage
from xla_flags import OptionValue

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "benchmarks" / "sweep.md"
SUITE = ("fsdp", "moe", "tp")
LEVERS = ("options", "costs", "settings")
_MIB = 1 << 20
_SIZES = (None, 0, 4 * _MIB, 32 * _MIB, 128 * _MIB, 256 * _MIB, 512 * _MIB, 1024 * _MIB)
# None leaves an option out.
TABLE: dict[str, tuple[OptionValue | None, ...]] = {
    "xla_gpu_enable_pipelined_all_gather": (None, True),
    "xla_gpu_enable_pipelined_all_reduce": (None, True),
    "xla_gpu_enable_pipelined_reduce_scatter": (None, True),
    "xla_gpu_enable_while_loop_double_buffering": (None, True),
    "xla_gpu_enable_while_loop_unrolling": (
        *(None, None, None),
        "WHILE_LOOP_UNROLLING_FULL_UNROLL",
    ),
    "xla_gpu_all_gather_combine_threshold_bytes": _SIZES,
    "xla_gpu_reduce_scatter_combine_threshold_bytes": _SIZES,
    "xla_gpu_all_reduce_combine_threshold_bytes": _SIZES,
    "xla_gpu_dot_merger_threshold_mb": (None, 0),
    "xla_gpu_experimental_parallel_collective_overlap_limit": (None, 2, 4),
}


@dataclasses.dataclass(frozen=True)
class Row:
    """One case."""

    case: str
    default_seconds: float
    candidates: int
    """Of the sweep, whatever became of them."""
    programs: int
    """Different programs among those."""
    unusable: int
    """Failed, or over memory."""
    ruled_out: int
    """No settings could make them the best: their floors are above it."""
    best_seconds: float
    best: str
    plan_seconds: float
    """A plan with the same levers and its default budget."""
    plan_compiles: int
    whole_seconds: float
    """A plan with all levers."""
    whole_compiles: int
    versions: str

    @property
    def share(self) -> float:
        """What the plan gains, of what the best of the sweep gains."""
        return self._gain(self.plan_seconds)

    @property
    def whole_share(self) -> float:
        """What the plan with all levers gains, likewise."""
        return self._gain(self.whole_seconds)

    def _gain(self, seconds: float) -> float:
        possible = self.default_seconds - self.best_seconds
        return (self.default_seconds - seconds) / possible if possible > 0 else 1.0


def drawn(count: int, seed: int = 0) -> list[dict[str, OptionValue]]:
    """Different sets of options, evenly from the table."""
    dice = random.Random(seed)
    found: dict[str, dict[str, OptionValue]] = {}
    while len(found) < count:
        drawn = {name: dice.choice(values) for name, values in TABLE.items()}
        options = {name: value for name, value in drawn.items() if value is not None}
        found[json.dumps(options, sort_keys=True)] = options
    return list(found.values())


class Swept:
    """The sweep of one case."""

    def __init__(self, case: str) -> None:
        self.planner: Planner = planner_of(case)
        cluster = self.planner.cluster
        self.controls = named("tuner")
        self.judge = Judge(cluster, self.controls)
        self.limit = Budget().memory(cluster.gpu.memory_bytes)
        self.programs: set[str] = set()
        self.tried = self.unusable = self.ruled_out = 0
        self.best_seconds, self.best = float("inf"), ""

    def run(self, case: str, count: int) -> None:
        """Compiles and judges as many candidates as were asked for."""
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            plain = drawn(count // 2)
            with_costs = [
                {**options, COSTS: cost_profile(timeline).encode()}
                for options, timeline in zip(
                    plain, self._looked(pool, plain), strict=True
                )
                if timeline is not None
            ]
            for _ in self._looked(pool, with_costs):
                pass
        print(f"{case}: {self.tried} candidates", file=sys.stderr, flush=True)

    def _looked(
        self,
        pool: concurrent.futures.Executor,
        sets: list[dict[str, OptionValue]],
    ) -> Iterator[Timeline | None]:
        made = pool.map(self._compiled, sets)
        for options, found in zip(sets, made, strict=True):
            self.tried += 1
            timeline, said = None, "unusable"
            if found is None or self._too_large(found[1]):
                self.unusable += 1
            else:
                timeline, said = self._seen(options, found[0])
            print(
                f"{self.tried}: {_words(options)}: {said}", file=sys.stderr, flush=True
            )
            yield timeline

    def _too_large(self, compiled: CompiledStep) -> bool:
        return (compiled.memory.peak_bytes or 0) > self.limit

    def _compiled(
        self, options: dict[str, OptionValue]
    ) -> tuple[Scheduled, CompiledStep] | None:
        try:
            return self.planner.compile(options)
        except LagomError:
            return None

    def _seen(
        self, options: dict[str, OptionValue], scheduled: Scheduled
    ) -> tuple[Timeline, str]:
        judge = self.judge
        program = build_program(scheduled.module)
        timeline = replay(program, judge.model, judge.model.contention())
        self.programs.add(structure_of(program).digest)
        space = space_of(program, self.planner.cluster, self.controls)
        floor = floor_seconds(Stage(program, space, judge.model))
        # Nothing is lost by looking no further, and most of the time is won.
        if floor >= self.best_seconds:
            self.ruled_out += 1
            return timeline, f"at least {milliseconds(floor)}"
        seconds = judge.look(scheduled).tuned_seconds
        if seconds < self.best_seconds:
            self.best_seconds, self.best = seconds, _words(options)
        return timeline, milliseconds(seconds)


def row_of(case: str, count: int) -> Row:
    swept = Swept(case)
    swept.run(case, count)
    # Judged as the sweep was, with the compiler asked anew.
    planner = planner_of(case)
    plan = planner.plan(Request(LEVERS))
    whole = planner.plan()
    return Row(
        case=case,
        default_seconds=plan.evidence.default.step_seconds,
        candidates=swept.tried,
        programs=len(swept.programs),
        unusable=swept.unusable,
        ruled_out=swept.ruled_out,
        best_seconds=swept.best_seconds,
        best=swept.best,
        plan_seconds=plan.evidence.tuned.step_seconds,
        plan_compiles=plan.evidence.compiles,
        whole_seconds=whole.evidence.tuned.step_seconds,
        whole_compiles=whole.evidence.compiles,
        versions=versions_of(plan),
    )


def _words(options: dict[str, OptionValue]) -> str:
    said = [
        "our costs" if name == COSTS else f"{name.removeprefix('xla_gpu_')}={value}"
        for name, value in options.items()
    ]
    return ", ".join(said) or "nothing"


def table(rows: list[Row]) -> str:
    lines = [
        "| case | default | best of the sweep | candidates | programs | unusable "
        "| ruled out "
        "| plan, same levers | of the sweep's gain | plan, all levers | of that gain |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        cells = (
            row.case,
            milliseconds(row.default_seconds),
            milliseconds(row.best_seconds),
            str(row.candidates),
            str(row.programs),
            str(row.unusable),
            str(row.ruled_out),
            f"{milliseconds(row.plan_seconds)}, {row.plan_compiles} compiles",
            f"{100 * row.share:.0f} %",
            f"{milliseconds(row.whole_seconds)}, {row.whole_compiles} compiles",
            f"{100 * row.whole_share:.0f} %",
        )
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "The best of each sweep:", ""]
    lines += [f"- {row.case}: {row.best}" for row in rows]
    return "\n".join(lines)


def page(rows: list[Row]) -> str:
    options = ", ".join(f"`{name}`" for name in TABLE)
    return (
        "# A plan beside a sweep\n\n"
        f"Made by `python scripts/bench_sweep.py`: {made_with(rows)}. "
        "All times are predicted, on schedules of XLA's real compiler, with "
        "settings searched for each (`tuner`). Half of the candidates are sets of "
        f"options drawn evenly from a table ({options}), the others the same with our "
        "costs as XLA's profile; the order stays XLA's. Those are ruled out that would "
        "not be the best with every collective at its fastest and nothing in "
        "anything's way. The plan has the same levers "
        "and its default budget; the plan with all levers may also change the order. "
        f"{described(rows)}. [What the figures say]"
        "(../../explanation/planning.md#what-it-gives).\n\n"
        f"{table(rows)}\n"
    )


def main() -> None:
    parser = arguments("A plan beside a sweep.", PAGE)
    parser.add_argument("--candidates", type=int, default=200)
    asked = parser.parse_args()
    count: int = asked.candidates
    rows = gathered(asked, Row, SUITE, lambda case: row_of(case, count), table)
    if asked.docs:
        PAGE.write_text(page(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
