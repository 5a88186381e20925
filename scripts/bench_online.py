"""Gains of jobs that tune themselves while they train, on machines stood in for.

    python scripts/bench_online.py --rows OUT [--case NAME] [--machines N] [--steps N]
    python scripts/bench_online.py --rows OUT --docs            # the page, from rows
    python scripts/bench_online.py --rows OUT --case NAME --picture MACHINE

Each case is planned once. On each hidden machine the search that runs in a job
(`lagom_jax.online`) begins after the first steps, with what planning knew, and is told
step times with noise, drift, hosts that lag and steps that take far longer; where it
has come to an end it is offered the settings around what it stands on, as in a job.
On some machines a profile of two steps is read first, and beside the job stand AutoCCL
and the paper's descent by the same budget of steps, told that machine's own times
without any noise, and a planner that knows the machine. Everything is predicted;
nothing runs on a GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hidden_machine import HiddenMachine, Weather
from online_cases import (
    EIGHT,
    STEPS,
    PlannedCase,
    Truth,
    autoccl_within,
    calibrated,
    hidden_constants,
    paper_within,
    planned,
    say,
    wrong,
)
from online_page import (
    BEGINS,
    BUDGETS,
    LOOKS,
    BesideOthers,
    Row,
    beside_table,
    page,
    table,
)

from lagom_jax.online.search import Search, after, turns
from lagom_jax.online.steps import StepTime
from lagom_jax.runtime.online import ROUNDS

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "reference" / "benchmarks" / "online.md"
PICTURE = DOCS / "how-to" / "pictures" / "online.png"


@dataclasses.dataclass(frozen=True)
class Run:
    """One job on one machine."""

    final: float
    """The undisturbed step of what ran last."""
    default: float
    plan: float
    best: float
    """Of all candidates that the job was offered."""
    in_use: dict[int, float]
    """The undisturbed step of what runs, after so many steps."""
    ended: int
    """The step after which nothing more was tried; the last one if that never was."""
    trials: int
    """Steps that were made by what was not believed the best."""
    lost: float
    """Steps' worth of time by which these took longer than the step as it was."""
    worst: float
    """The share of a step that the slowest of these took longer."""
    rounds: int
    """Candidates of which the settings around were asked for."""


def job(
    case: PlannedCase, truth: Truth, steps: int, seed: str
) -> tuple[Run, list[tuple[int, float]]]:
    """A job of so many steps, and the time of each."""
    return Job(case, truth, steps, seed).run()


class Job:
    """One job on one machine, as it goes on."""

    def __init__(self, case: PlannedCase, truth: Truth, steps: int, seed: str) -> None:
        self._case, self._truth, self._steps = case, truth, steps
        # The numbers by which the case knows what this job was offered.
        self._offered = [*range(case.begins_with)]
        self._seconds = [truth.seconds(case.ways[n]) for n in self._offered]
        weather = Weather.drawn(random.Random(seed))
        self._machine = HiddenMachine(self._seconds, weather, seed)
        self._rounds: list[int] = []

    def run(self) -> tuple[Run, list[tuple[int, float]]]:
        """The job from its first step to its last."""
        machine, seconds = self._machine, self._seconds
        series = [(0, machine.step(0)) for _ in range(BEGINS)]
        search = Search.among(self._candidates(), steps=BEGINS)
        in_use: dict[int, float] = {}
        ended, lost, worst, running = self._steps, 0.0, 0.0, 0
        while len(series) < self._steps:
            planned = turns(search)
            if not planned:
                search = self._around(search)
                planned = turns(search)
            if not planned:
                ended = min(ended, len(series))
                planned = (search.base,) * (self._steps - len(series))
            taken = [StepTime(one, machine.step(one)) for one in planned]
            for one in taken:
                series.append((one.candidate, one.seconds))
                longer = seconds[one.candidate] / seconds[0] - 1
                lost, worst = lost + max(0.0, longer), max(worst, longer)
            if not search.over:
                search = after(search, taken)
            running = search.running
            for look in LOOKS:
                if len(series) >= look and look not in in_use:
                    in_use[look] = seconds[running]
        return (
            Run(
                seconds[running],
                seconds[0],
                seconds[min(1, len(seconds) - 1)],
                min(seconds),
                in_use,
                ended,
                search.spent,
                lost,
                worst,
                len(self._rounds),
            ),
            series,
        )

    def _candidates(self) -> list[Any]:
        return [self._case.candidates[n] for n in self._offered]

    def _around(self, search: Search) -> Search:
        """The search with the settings around what it stands on, asked for once."""
        base = self._offered[search.base]
        if base in self._rounds or len(self._rounds) >= ROUNDS:
            return search
        program = self._case.program_of(base)
        known = {self._case.program_of(one) for one in self._rounds}
        self._rounds.append(base)
        new = self._case.around(base, start=program not in known)
        new = [one for one in new if one not in self._offered]
        for one in new:
            self._offered.append(one)
            self._seconds.append(self._truth.seconds(self._case.ways[one]))
            self._machine.add(self._seconds[-1])
        more = [
            dataclasses.replace(
                one, purchase=dataclasses.replace(one.purchase, beside=search.base)
            )
            for one in (self._case.candidates[n] for n in new)
            if one.purchase is not None
        ]
        return search.offered(more)


def row_of(case: PlannedCase, truths: Sequence[Truth], steps: int) -> Row:
    runs: list[Run] = []
    for number, truth in enumerate(truths):
        runs.append(job(case, truth, steps, f"{case.name} {number}")[0])
        if number % 20 == 19:
            say(case.name, f"{number + 1} machines")
    count = len(runs)
    middle = statistics.median
    return Row(
        case.name,
        case.versions,
        case.compiles,
        steps,
        count,
        case.begins_with,
        sum(one.final <= 1.01 * one.best for one in runs) / count,
        sum(one.final > 1.001 * one.default for one in runs),
        sum(one.plan <= 1.01 * one.best for one in runs) / count,
        sum(one.plan > 1.001 * one.default for one in runs),
        middle(1 - one.final / one.default for one in runs),
        middle(1 - one.plan / one.default for one in runs),
        middle(1 - one.best / one.default for one in runs),
        round(middle(one.ended for one in runs)),
        statistics.mean(one.trials for one in runs),
        max(one.trials for one in runs),
        statistics.mean(one.rounds for one in runs),
        statistics.mean(one.lost for one in runs),
        max(one.worst for one in runs),
    )


def beside_of(case: PlannedCase, truths: Sequence[Truth], *, off: bool) -> BesideOthers:
    """A case on some machines, beside other ways to tune."""
    kind = "wrong" if off else "drawn"
    plain: list[Run] = []
    profiled: list[Run] = []
    others: dict[str, list[list[float]]] = {"autoccl": [], "rounds": [], "paper": []}
    knowing: list[float] = []
    for number, truth in enumerate(truths):
        seed = f"{case.name} {kind} {number}"
        plain.append(job(case, truth, LOOKS[-1] + 50, seed)[0])
        known = calibrated(case, truth, seed)
        profiled.append(job(known, truth, LOOKS[-1] + 50, seed)[0])
        default = plain[-1].default
        knowing.append(1 - truth.knowing(case.finished) / default)
        stage = truth.stage(case.ways[0])
        autoccl = [autoccl_within(stage, most) for most in BUDGETS]
        paper = [paper_within(stage, most) for most in BUDGETS]
        others["autoccl"].append([1 - one / default for one, _ in autoccl])
        others["rounds"].append([float(count) for _, count in autoccl])
        others["paper"].append([1 - one / default for one, _ in paper])
        say(case.name, f"{kind} machine {number + 1} of {len(truths)}")
    possible = sum(max(0.0, one) for one in knowing)

    def won(runs: Sequence[Run]) -> tuple[float, ...]:
        totals = (sum(_gain(run.in_use[look], run) for run in runs) for look in LOOKS)
        return tuple(one / possible if possible else math.nan for one in totals)

    return BesideOthers(
        case.name,
        off,
        len(plain),
        statistics.median(_gain(run.plan, run) for run in plain),
        _after(plain),
        statistics.median(_gain(run.plan, run) for run in profiled),
        _after(profiled),
        _medians(others["autoccl"]),
        _medians(others["rounds"]),
        _medians(others["paper"]),
        statistics.median(knowing),
        won(plain),
        won(profiled),
    )


def _gain(seconds: float, run: Run) -> float:
    return 1 - seconds / run.default


def _after(runs: Sequence[Run]) -> tuple[float, ...]:
    return _medians([[_gain(run.in_use[look], run) for look in LOOKS] for run in runs])


def _medians(rows: Sequence[Sequence[float]]) -> tuple[float, ...]:
    return tuple(statistics.median(column) for column in zip(*rows, strict=True))


def draw(case: PlannedCase, truth: Truth, machine: int, steps: int = 1500) -> None:
    """Draws the step times of one job, from the first to the last."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    run, series = job(case, truth, steps, f"{case.name} {machine}")
    figure, axes = plt.subplots(figsize=(9, 3.6), layout="constrained")
    shown = dict.fromkeys(candidate for candidate, _ in series)
    grey, *colours = ("0.55", "C0", "C1", "C2", "C3", "C4", "C5", "C6", "C8")
    for place, candidate in enumerate(shown):
        own = [(n, 1e3 * t) for n, (one, t) in enumerate(series) if one == candidate]
        settings = candidate >= case.begins_with
        label = "as it is" if not candidate else "the plan"
        if candidate > 1:
            label = f"another {'setting' if settings else 'program'} ({candidate})"
        colour = grey if not candidate else colours[(place - 1) % len(colours)]
        axes.scatter(*zip(*own, strict=True), s=5, color=colour, label=label)
    times = sorted(1e3 * one for _, one in series)
    low, high = times[0], times[int(0.99 * len(times))]
    axes.set(
        xlabel="step of the job",
        ylabel="milliseconds",
        ylim=(low - 0.1 * (high - low), high + 0.25 * (high - low)),
    )
    axes.axvline(BEGINS, color="0.7", linewidth=0.8, zorder=0)
    axes.legend(loc="upper right", ncols=3, frameon=False, markerscale=2.5)
    figure.savefig(PICTURE, dpi=110)
    print(f"{PICTURE}: {run}")


def truths_of(
    case: PlannedCase, machines: int, some: int
) -> tuple[list[Truth], list[Truth], list[Truth]]:
    """Machines as the ensemble has them, some of these, and some that are off."""
    hidden = hidden_constants(case, machines)
    off = [wrong(one, f"1 {number}") for number, one in enumerate(hidden[:some])]
    truths = [Truth(case, one) for one in hidden]
    return truths, truths[:some], [Truth(case, one) for one in off]


def run_case(
    name: str, compiles: int, machines: int, some: int, steps: int
) -> dict[str, Any]:
    """All rows of a case."""
    case = planned(name, compiles)
    truths, few, off = truths_of(case, machines, some)
    began = time.monotonic()
    right = beside_of(case, few, off=False)
    wrong_ = beside_of(case, off, off=True)
    print(beside_table([right]), beside_table([wrong_]), sep="\n", flush=True)
    row = row_of(case, truths, steps)
    print(table([row]), flush=True)
    say(name, f"{time.monotonic() - began:.0f} s after planning")
    kinds = {"all": row, "right": right, "wrong": wrong_}
    return {kind: dataclasses.asdict(one) for kind, one in kinds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Jobs that tune themselves.")
    parser.add_argument("--rows", type=Path, required=True, metavar="OUT")
    parser.add_argument("--case", action="append", choices=tuple(STEPS))
    parser.add_argument("--compiles", type=int, default=4)
    parser.add_argument("--machines", type=int, default=200)
    parser.add_argument("--some", type=int, default=8, help="beside other ways")
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--docs", action="store_true", help=f"rewrite {PAGE.name}")
    parser.add_argument("--picture", type=int, metavar="MACHINE")
    asked = parser.parse_args()
    if asked.picture is not None:
        case = planned(asked.case[0], asked.compiles)
        constants = hidden_constants(case, asked.picture + 1)[-1]
        draw(case, Truth(case, constants), asked.picture)
        return
    kept = json.loads(asked.rows.read_text()) if asked.rows.exists() else {}
    for name in () if asked.docs else asked.case or EIGHT:
        kept[name] = run_case(
            *(name, asked.compiles, asked.machines, asked.some, asked.steps)
        )
        asked.rows.write_text(json.dumps(kept, indent=1) + "\n")
    if asked.docs:
        found = [kept[name] for name in EIGHT if name in kept]
        rows = [Row(**one["all"]) for one in found]
        right = [BesideOthers(**one["right"]) for one in found]
        off = [BesideOthers(**one["wrong"]) for one in found]
        PAGE.write_text(page(rows, right, off))


if __name__ == "__main__":
    main()
