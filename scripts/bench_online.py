"""Gains of jobs that tune themselves while they train, on machines stood in for.

    python scripts/bench_online.py CASES [--machines N] [--steps N] [--docs]
    python scripts/bench_online.py CASES --picture MACHINE     # of the first case

`CASES` is what `scripts/online_cases.py` wrote. On each hidden machine the search that
runs in a job (`lagom_jax.online`) begins after the first steps, with what planning
knew, and is told step times with noise, drift, hosts that lag and steps that take far
longer.
Beside it stand the plan alone (planned once, never measured), AutoCCL and the paper's
descent (told that machine's own times without any noise, for as long as they ask), and
the best of all candidates. Everything is predicted; nothing runs on a GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hidden_machine import HiddenMachine, Weather
from online_cases import EIGHT, SOME

from lagom_jax.online.belief import StepCandidate
from lagom_jax.online.search import Search, after, turns
from lagom_jax.online.steps import StepTime

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "reference" / "benchmarks" / "online.md"
PICTURE = DOCS / "how-to" / "pictures" / "online.png"
BEGINS = 20
"""Steps that a job makes before the first candidate is built."""
LOOKS = (100, 500, 2000)


@dataclasses.dataclass(frozen=True)
class Run:
    """One job on one machine."""

    final: float
    """The undisturbed step of what ran last."""
    default: float
    plan: float
    best: float
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
    switches: int


def job(
    case: dict[str, Any], truth: Sequence[float], steps: int, seed: str
) -> tuple[Run, list[tuple[int, float]]]:
    """A job of so many steps, and the time of each."""
    chance = random.Random(seed)
    machine = HiddenMachine(truth, Weather.drawn(chance), seed)
    candidates = [
        StepCandidate(name, seconds, tuple(by_model))
        for name, seconds, by_model in zip(
            case["names"], case["seconds"], case["by_model"], strict=True
        )
    ]
    series = [(0, machine.step(0)) for _ in range(BEGINS)]
    search = Search.among(candidates, steps=BEGINS)
    in_use: dict[int, float] = {}
    ended, lost, worst, switches, running = steps, 0.0, 0.0, 0, 0
    while len(series) < steps:
        planned = turns(search)
        if not planned:
            ended = min(ended, len(series))
            planned = (search.base,) * (steps - len(series))
        taken = [StepTime(one, machine.step(one)) for one in planned]
        for one in taken:
            series.append((one.candidate, one.seconds))
            longer = truth[one.candidate] / truth[0] - 1
            lost, worst = lost + max(0.0, longer), max(worst, longer)
        before = search.running
        if not search.over:
            search = after(search, taken)
        switches += search.running != before
        running = search.running
        for look in LOOKS:
            if len(series) >= look and look not in in_use:
                in_use[look] = truth[running]
    return (
        Run(
            truth[running],
            truth[0],
            truth[min(1, len(truth) - 1)],
            min(truth),
            in_use,
            ended,
            search.spent,
            lost,
            worst,
            switches,
        ),
        series,
    )


@dataclasses.dataclass(frozen=True)
class Row:
    """One case on all machines."""

    case: str
    machines: int
    candidates: int
    near_best: float
    """The share of jobs that end within 1 % of the best candidate."""
    slower: int
    """Jobs that end slower than the step as it is, by more than a thousandth."""
    plan_near_best: float
    plan_slower: int
    gain: float
    """The median over all jobs of the time a step is shorter in the end."""
    plan_gain: float
    best_gain: float
    ended: int
    """The median of the step after which nothing was tried any more."""
    trials: float
    most_trials: int
    lost: float
    worst: float


def row_of(case: dict[str, Any], machines: int, steps: int) -> Row:
    runs = [
        job(case, truth, steps, f"{case['case']} {number}")[0]
        for number, truth in enumerate(case["hidden"][:machines])
    ]
    count = len(runs)
    middle = statistics.median
    return Row(
        case["case"],
        count,
        len(case["names"]),
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
        statistics.mean(one.lost for one in runs),
        max(one.worst for one in runs),
    )


@dataclasses.dataclass(frozen=True)
class BesideOthers:
    """A case beside other ways to tune, on some machines: medians of gains."""

    case: str
    wrong: bool
    machines: int
    gains: tuple[float, ...]
    """Of our jobs after each of `LOOKS`."""
    plan: float
    autoccl: float
    autoccl_rounds: int
    paper: float
    paper_rounds: int
    knowing: float
    """Of a planner that knows the machine, with settings of its own."""
    won: tuple[float, ...]
    """After each of `LOOKS`, the gains of all machines together over those of such a
    planner."""


def beside_of(case: dict[str, Any], *, wrong: bool) -> BesideOthers:
    told = case["policies_wrong" if wrong else "policies"]
    truths = case["wrong" if wrong else "hidden"][: len(told)]
    seeds = [f"{case['case']} {wrong} {number}" for number in range(len(told))]
    runs = [
        job(case, truth, LOOKS[-1] + 50, seed)[0]
        for truth, seed in zip(truths, seeds, strict=True)
    ]

    def gain(seconds: float, run: Run) -> float:
        return 1 - seconds / run.default

    pairs = list(zip(told, runs, strict=True))
    possible = sum(max(0.0, gain(one["knowing"], run)) for one, run in pairs)
    looks = [[gain(run.in_use[look], run) for run in runs] for look in LOOKS]
    middle = statistics.median
    return BesideOthers(
        case["case"],
        wrong,
        len(runs),
        tuple(middle(one) for one in looks),
        middle(gain(run.plan, run) for run in runs),
        middle(gain(one["autoccl"][0], run) for one, run in pairs),
        round(middle(one["autoccl"][1] for one in told)),
        middle(gain(one["paper"][0], run) for one, run in pairs),
        round(middle(one["paper"][1] for one in told)),
        middle(gain(one["knowing"], run) for one, run in pairs),
        tuple(sum(one) / possible if possible else math.nan for one in looks),
    )


def table(rows: Sequence[Row]) -> str:
    titles = (
        *("case", "candidates", "within 1 % of the best", "slower at the end"),
        *("plan alone: within 1 %", "slower", "shorter, median", "plan alone", "best"),
        *("over after step", "steps on trial: mean", "most"),
        *("steps' time lost, mean", "worst step"),
    )
    lines = [f"| {' | '.join(titles)} |", "|---|" + "--:|" * (len(titles) - 1)]
    for row in rows:
        cells = (
            *(row.case, row.candidates, f"{row.near_best:.1%}"),
            f"{row.slower} of {row.machines}",
            *(f"{row.plan_near_best:.1%}", row.plan_slower),
            *(f"{row.gain:.1%}", f"{row.plan_gain:.1%}", f"{row.best_gain:.1%}"),
            *(row.ended, f"{row.trials:.1f}", row.most_trials),
            *(f"{row.lost:.2f}", f"+{row.worst:.1%}"),
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def beside_table(rows: Sequence[BesideOthers]) -> str:
    looks = " | ".join(f"after {look}" for look in LOOKS)
    lines = [
        f"| case | plan alone | {looks} | AutoCCL | its rounds | the paper's descent | "
        "its rounds | a planner that knows | won of that: "
        f"{looks} |",
        "|---|" + "--:|" * (6 + 2 * len(LOOKS)),
    ]
    for row in rows:
        gains = " | ".join(f"{gain:.1%}" for gain in row.gains)
        won = " | ".join(f"{share:.0%}" for share in row.won)
        lines.append(
            f"| {row.case} | {row.plan:.1%} | {gains} | {row.autoccl:.1%} "
            f"| {row.autoccl_rounds} | {row.paper:.1%} | {row.paper_rounds} "
            f"| {row.knowing:.1%} | {won} |"
        )
    return "\n".join(lines)


def page(
    cases: Sequence[dict[str, Any]],
    steps: int,
    rows: Sequence[Row],
    right: Sequence[BesideOthers],
    off: Sequence[BesideOthers],
) -> str:
    """The page of the benchmark."""
    jobs = sum(row.machines for row in rows)
    near = sum(row.near_best * row.machines for row in rows) / jobs
    slower = sum(row.slower for row in rows)
    alone = sum(row.plan_near_best * row.machines for row in rows) / jobs
    alone_slower = sum(row.plan_slower for row in rows)
    lacking = [name for name in EIGHT if name not in {row.case for row in rows}]
    made = "; ".join(
        f"{case['case']} is {case['step'][0]} on {case['step'][1]}, "
        f"{case['step'][2]['layers']} layers"
        for case in cases
    )
    missing = f" Not run: {', '.join(lacking)}." if lacking else ""
    return f"""# Tuning while a job trains

Made by `python scripts/online_cases.py --compiles {cases[0]["compiles"]} CASES` and
`python scripts/bench_online.py CASES --steps {steps} --docs`: {cases[0]["versions"]}.
{made}.{missing} Nothing ran on a GPU: each job runs on a machine whose step times are
the replay's, under constants that are drawn as those of the ensemble are, with
another seed, and disturbed: noise of {noise_in_words()}, drift, hosts that lag for a
while, single steps that take up to four times as long. The search is the one that
runs in a job (`lagom_jax.online`), and begins after {BEGINS} steps.

Of {jobs} jobs of {steps} steps {near:.1%} end within 1 % of the best of their
candidates, and {slower} end slower than the step as it is, by more than a thousandth.
With the plan alone, planned once and never measured, {alone:.1%} are within 1 %, and
{alone_slower} are slower.

## All machines

*Steps on trial* are those made by what was not believed the best; *steps' time lost*
is what all of them together took longer than the step as it is, in steps; the *worst
step* is the longest of any job, but for what disturbs it.

{table(rows)}

## Beside other ways

Times by which a step is shorter than as it is, medians over {SOME} of these machines.
AutoCCL and the paper's descent set NCCL's settings of the program as it is. They are
told the machine's own times without noise for as many rounds as they ask for, each at
least a step of a job (AutoCCL can try a setting for each kind of collective in one
step); a job that holds to 1 % has {LOOKS[-1] // 100} such steps after {LOOKS[-1]}. *A
planner that knows* has the machine's own constants, and finds settings of its own for
each program that was compiled: *won of that* is the share of its gains, over all
machines, that the job has.

{beside_table(right)}

## With a wrong model

The same on machines where the times of matmuls, of collectives and of the network are
off by 2 to 4 times, each up or down, which no model of the ensemble allows for.

{beside_table(off)}
"""


def noise_in_words() -> str:
    """The range of a step's noise, as `Weather.drawn` has it."""
    found = [Weather.drawn(random.Random(seed)).noise for seed in range(1000)]
    return f"{min(found):.1%} to {max(found):.1%}"


def draw(case: dict[str, Any], machine: int, steps: int = 1500) -> None:
    """Draws the step times of one job, from the first to the last."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    truth = case["hidden"][machine]
    run, series = job(case, truth, steps, f"{case['case']} {machine}")
    figure, axes = plt.subplots(figsize=(9, 3.6), layout="constrained")
    shown = dict.fromkeys(candidate for candidate, _ in series)
    grey, *colours = ("0.55", "C0", "C1", "C2", "C3", "C4", "C5", "C6", "C8")
    for place, candidate in enumerate(shown):
        own = [(n, 1e3 * t) for n, (one, t) in enumerate(series) if one == candidate]
        name = case["names"][candidate]
        plan = case["names"][min(1, len(truth) - 1)]
        same = name.partition(" ")[0] == plan.partition(" ")[0]
        label = "as it is" if not candidate else "the plan"
        if candidate > 1:
            label = f"another {'setting' if same else 'program'} ({candidate})"
        colour = grey if not candidate else colours[(place - 1) % len(colours)]
        axes.scatter(*zip(*own, strict=True), s=5, color=colour, label=label)
    low, high = (1e3 * ends for ends in (min(truth), max(truth)))
    axes.set(
        xlabel="step of the job",
        ylabel="milliseconds",
        ylim=(low - 0.1 * (high - low) - 0.02 * low, high + 0.08 * low),
    )
    axes.axvline(BEGINS, color="0.7", linewidth=0.8, zorder=0)
    axes.legend(loc="upper right", ncols=3, frameon=False, markerscale=2.5)
    figure.savefig(PICTURE, dpi=110)
    print(f"{PICTURE}: {run}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Jobs that tune themselves.")
    parser.add_argument("cases", type=Path, nargs="+", metavar="CASES")
    parser.add_argument("--machines", type=int, default=200)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--json", type=Path, metavar="OUT")
    parser.add_argument("--docs", action="store_true", help=f"rewrite {PAGE.name}")
    parser.add_argument("--picture", type=int, metavar="MACHINE")
    asked = parser.parse_args()
    cases = [one for path in asked.cases for one in json.loads(path.read_text())]
    if asked.picture is not None:
        draw(cases[0], asked.picture)
        return
    rows = [row_of(case, asked.machines, asked.steps) for case in cases]
    print(table(rows))
    right = [beside_of(case, wrong=False) for case in cases]
    off = [beside_of(case, wrong=True) for case in cases]
    print("", beside_table(right), "", beside_table(off), sep="\n")
    if asked.docs:
        PAGE.write_text(page(cases, asked.steps, rows, right, off))
    if asked.json:
        found = [dataclasses.asdict(one) for one in (*rows, *right, *off)]
        asked.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
