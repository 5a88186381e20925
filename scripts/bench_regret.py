"""Regret of plans that are made under one model of an ensemble and run under another.

    python scripts/bench_regret.py [--case NAME] [--compiles N] [--json OUT] [--docs]
    python scripts/bench_regret.py --from OUT --coverage COVERAGE --docs

For each case the candidates of a plan are compiled once. Then a plan is made under
every model of the ensemble: that one is taken for the likeliest, finds its own settings
for each candidate, says which are worth a closer look, and what it finds is decided by
regret, as every plan is. Beside that every model decides for itself: it takes the
candidate that it finds the fastest, with the settings that Lagom's search finds for it.
All of these plans are timed under all models, beside the plan of the likeliest, and
beside the program as it is. A plan's regret under a model is how much longer its step
takes than that of the best of all of them there. `COVERAGE` is what
`scripts/score_coverage.py --json` wrote. Everything is predicted.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from planned_cases import (
    CASES,
    STEPS,
    budget_of,
    planner_of,
    read_rows,
    versions_of,
    write_page,
    write_rows,
)
from unseen_steps import UNSEEN

from lagom_jax.planner import Budget, Request
from lagom_jax.planner.comparison import as_compiled
from lagom_jax.planner.decide import Timing, decide, finalists
from lagom_jax.planner.judge import Judge, View
from lagom_jax.planner.trial import Trial
from lagom_jax.settings.lagom import Lagom

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "benchmarks" / "regret.md"
SMALL: dict[str, tuple[str, str, dict[str, Any]]] = {
    "fsdp, 4 layers": (
        "llama-3-8b",
        "h100:2x8",
        {"parallelism": "fsdp", "batch": 1, "layers": 4},
    ),
    "tp, 2 layers": (
        "llama-3-8b",
        "h100:1x8",
        {"parallelism": "tp", "batch": 2, "layers": 2},
    ),
    "fsdp, 2 layers, A40": (
        "phi-2",
        "a40-pcie:2x8",
        {"parallelism": "fsdp", "layers": 2},
    ),
}
"""Steps that can be planned in a minute."""
_IN_REACH = 0.10
"""No model is asked again about a candidate that is so far behind by the likeliest."""
ALL = {**SMALL, **STEPS}


@dataclasses.dataclass(frozen=True)
class Row:
    """One case."""

    case: str
    models: int
    alone: list[float]
    """Regrets of what each model takes by itself, under each of the other models."""
    led: list[float]
    """The same of plans that are decided by regret, by the model that each was made
    under."""
    led_slower: int
    """Of these plans the most models under which one is slower than the program as it
    is."""
    decided_mean: float
    """Of the plan decided by regret, over all models."""
    decided_worst: float
    slower: int
    """Models under which that plan is slower than the program as it is."""
    default_seconds: float
    tuned_seconds: float
    tuned_low: float
    tuned_high: float
    speedup_low: float
    speedup_high: float
    decide_seconds: float
    """CPU seconds of this process for the whole plan, but for what compiles took."""
    of_it_regret: float
    """Those that the ensemble took: before transports are tried, and in the end."""
    versions: str

    @property
    def without_regret(self) -> float:
        """CPU seconds that a plan takes that one model decides."""
        return self.decide_seconds - self.of_it_regret


def row_of(case: str, compiles: int) -> Row:
    planner = planner_of(case, steps=ALL, search_anew=True)
    phases: list[tuple[float, str]] = []

    def say(what: str) -> None:
        print(f"{case}: {what}", file=sys.stderr, flush=True)
        phases.append((time.process_time(), what))

    begun = time.process_time()
    plan = planner.plan(Request(budget=budget_of(compiles), progress=say))
    phases.append((time.process_time(), "ended"))
    finished, found = planner.finished, plan.evidence.uncertainty
    assert finished is not None
    assert found is not None
    views = [t.view for t in finalists(finished.trials) if t.view is not None]
    alone = plans_of_models(finished.judge, views)
    led = [led_by(finished.judge, n, finished.trials) for n in range(len(alone))]
    taken = finished.taken.view
    assert taken is not None
    decided = by_model(finished.judge, taken, taken.found.choice)
    untouched = np.array(finished.ways[0].scored.by_model)
    times = np.array([*alone, *led, decided])
    regret = times / times.min(axis=0) - 1
    elsewhere = ~np.eye(len(alone), dtype=bool)
    return Row(
        case=case,
        models=len(alone),
        alone=regret[: len(alone)][elsewhere].tolist(),
        led=regret[len(alone) : -1][elsewhere].tolist(),
        led_slower=max(int((np.array(one) > untouched).sum()) for one in led),
        decided_mean=float(regret[-1].mean()),
        decided_worst=float(regret[-1].max()),
        slower=found.slower,
        default_seconds=found.default.expected,
        tuned_seconds=found.tuned.expected,
        tuned_low=found.tuned.low,
        tuned_high=found.tuned.high,
        speedup_low=found.speedup.low,
        speedup_high=found.speedup.high,
        decide_seconds=phases[-1][0] - begun,
        of_it_regret=sum(
            after - before
            for (before, what), (after, _) in itertools.pairwise(phases)
            if what.startswith("timing")
        ),
        versions=versions_of(plan),
    )


def led_by(judge: Judge, number: int, trials: Sequence[Trial]) -> tuple[float, ...]:
    """Times under all models of the plan that is made under one of them.

    Args:
        judge: What looked at the candidates.
        number: The model that is taken for the likeliest.
        trials: The candidates.
    """
    judge = judge.led_by(number)
    first, *others = (trial for trial in trials if trial.view is not None)
    least = min(map(as_compiled, [first, *others]))
    near = [trial for trial in others if as_compiled(trial) <= least * (1 + _IN_REACH)]
    looked = [
        dataclasses.replace(trial, view=judge.look(trial.view.scheduled))
        for trial in (first, *near)
        if trial.view is not None
    ]
    scored = decide(looked, Timing(judge)).scored
    assert scored is not None
    times = list(scored.by_model)
    # Its own place is that of the model that was the likeliest.
    times[number] = scored.seconds
    return tuple(times)


def by_model(judge: Judge, view: View, choice: Sequence[int]) -> tuple[float, ...]:
    return judge.doubt(view.stage, view.policy).step_seconds(tuple(choice))


def plans_of_models(judge: Judge, views: Sequence[View]) -> list[tuple[float, ...]]:
    """Times under all models of the plan that each of them would make."""
    doubts = [judge.doubt(view.stage, view.policy) for view in views]
    found: list[tuple[float, ...]] = []
    for number in range(len(doubts[0].stages)):

        def seconds(place: int, number: int = number) -> float:
            choice = views[place].found.choice
            return doubts[place].stages[number].score(choice).step_seconds

        best = doubts[min(range(len(views)), key=seconds)]
        choice = Lagom().choose(best.stages[number]).choice
        found.append(best.step_seconds(choice))
    return found


def table(rows: Sequence[Row]) -> str:
    lines = [
        "| case | plans made under one model, under the others: median regret | worst "
        "| slower in | without deciding by regret: median | worst "
        "| the plan itself: mean | worst | slower in |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {row.case} | {np.median(row.led):.2%} | {max(row.led):.2%} "
        f"| {row.led_slower} of {row.models} "
        f"| {np.median(row.alone):.2%} | {max(row.alone):.2%} "
        f"| {row.decided_mean:.2%} | {row.decided_worst:.2%} "
        f"| {row.slower} of {row.models} |"
        for row in rows
    ]
    if len(rows) > 1:
        led = [regret for row in rows for regret in row.led]
        alone = [regret for row in rows for regret in row.alone]
        slower, models = sum(r.slower for r in rows), sum(r.models for r in rows)
        lines.append(
            f"| all | {np.median(led):.2%} | {max(led):.2%} "
            f"| {max(row.led_slower for row in rows)} of {rows[0].models} "
            f"| {np.median(alone):.2%} | {max(alone):.2%} "
            f"| {np.mean([row.decided_mean for row in rows]):.2%} "
            f"| {max(row.decided_worst for row in rows):.2%} "
            f"| {slower} of {models} |"
        )
    return "\n".join(lines)


def intervals(rows: Iterable[Row]) -> str:
    lines = [
        "| case | step | with the plan | width | times as fast | CPU to decide by one "
        "model | by all | grows by |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {row.case} | {1e3 * row.default_seconds:.1f} ms "
        f"| {1e3 * row.tuned_seconds:.1f} ms ({1e3 * row.tuned_low:.1f} to "
        f"{1e3 * row.tuned_high:.1f}) "
        f"| {(row.tuned_high - row.tuned_low) / row.tuned_seconds:.0%} "
        f"| {row.default_seconds / row.tuned_seconds:.2f} ({row.speedup_low:.2f} to "
        f"{row.speedup_high:.2f}) "
        f"| {row.without_regret:.1f} s | {row.decide_seconds:.1f} s "
        f"| {row.of_it_regret / row.without_regret:.0%} |"
        for row in rows
    ]
    return "\n".join(lines)


def covered(paths: Iterable[Path]) -> str:
    rows = [row for path in paths for row in json.loads(path.read_text())]
    total, inside = (sum(row[key] for row in rows) for key in ("rows", "inside"))
    lines = [
        "| measurements kept out | rows | within their intervals | width |",
        "|---|--:|--:|--:|",
    ]
    lines += [
        f"| {row['what']} | {row['rows']} | {row['inside'] / row['rows']:.0%} "
        f"| {row['width']:.0%} |"
        for row in rows
    ]
    return "\n".join([*lines, f"| all | {total} | {inside / total:.0%} | |"])


def page(rows: Sequence[Row], coverage: Sequence[Path]) -> str:
    cases = " ".join(f"--case '{row.case}'" for row in rows)
    versions = " and ".join(dict.fromkeys(row.versions for row in rows))
    return f"""# Regret and coverage

Made by `python scripts/bench_regret.py {cases}`: {versions}.
Which step each case is: [levers](levers.md). All times are
predicted, on schedules of XLA's real compiler. {absent(rows)}

## Plans under models that did not make them

A plan is made under every model of the ensemble: that model is taken for the likeliest,
the one that is otherwise the likeliest takes its place, and among the same compiled
candidates the plan is decided by regret, as every plan is. It is then timed under all
other models. *Slower in* counts the models by which a plan is slower than the program
as it is, of twenty plans the most. *Without deciding by regret* every model takes what
it finds the fastest, with settings of its own, and asks no other: that is what deciding
by regret is for. *The plan itself* is that of the likeliest model, which `lagom tune`
hands out. Regret is how much longer a step takes than with the best of all of these
plans under the same model. Orders of instructions were searched for under the likeliest
model, and off the rings under a few others with it.

{table(rows)}

## Intervals, and the time to decide

{intervals(rows)}

CPU to decide is of one process, for the whole plan but for what compiles took; *by one
model* is the same without what replays under the other models took.

## Coverage

Made by `python scripts/score_coverage.py`: constants fitted without the rows in
question, and of those rows the share that lies within the interval that the ensemble
around these constants states. Matmuls are kept out by shape, NCCL alone row by row,
networks whole. A table's matmuls are priced as its loop leaves them in the cache. Of
the A100's step only the matmuls are a test: other kernels are fitted to it, the width
of single ones (`one_kernel`) and a form of collectives of many arrays were stated with
it in view.

{covered(coverage)}
"""


def absent(rows: Sequence[Row]) -> str:
    """The steps that nobody ran, in words."""
    asked = {**CASES, **UNSEEN}
    missing = [name for name in asked if name not in {row.case for row in rows}]
    return f"Not run: {', '.join(missing)}." if missing else ""


def main() -> None:
    parser = argparse.ArgumentParser(description="Regret of plans.")
    parser.add_argument("--case", action="append", choices=tuple(ALL))
    parser.add_argument("--compiles", type=int, default=Budget().compiles)
    parser.add_argument("--json", type=Path, metavar="OUT")
    parser.add_argument("--from", action="append", dest="made", type=Path)
    parser.add_argument("--coverage", action="append", type=Path, default=[])
    parser.add_argument("--docs", action="store_true", help=f"rewrite {PAGE.name}")
    asked = parser.parse_args()
    if asked.docs and not asked.coverage:
        parser.error("--docs needs --coverage, of what score_coverage.py --json wrote")
    rows = list(read_rows(asked.made or (), Row))
    for case in () if asked.made else asked.case or SMALL:
        rows.append(row_of(case, asked.compiles))
        print(table(rows[-1:]), intervals(rows[-1:]), sep="\n", flush=True)
        write_rows(asked.json, rows)
    if asked.docs:
        write_page(PAGE, page(rows, asked.coverage))


if __name__ == "__main__":
    main()
