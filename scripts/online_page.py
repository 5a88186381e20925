"""The page of bench_online: its rows, tables and words."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

from hidden_machine import Weather
from online_cases import EIGHT, STEPS

from lagom_jax.runtime.online import ROUNDS

BEGINS = 20
"""Steps that a job makes before the first candidate is built."""
LOOKS = (100, 500, 2000)
BUDGETS = (10, 20, 50)
"""Steps on trial that a job may have made after 100, 2000 and 5000."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One case on all machines."""

    case: str
    versions: str
    compiles: int
    steps: int
    machines: int
    candidates: int
    """That a job begins with."""
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
    rounds: float
    lost: float
    worst: float


@dataclasses.dataclass(frozen=True)
class BesideOthers:
    """A case beside other ways to tune, on some machines: medians of gains."""

    case: str
    wrong: bool
    machines: int
    plan: float
    gains: tuple[float, ...]
    """Of our jobs after each of `LOOKS`."""
    profiled_plan: float
    """Of the plan with a model that a profile of two steps has corrected."""
    profiled_gains: tuple[float, ...]
    autoccl: tuple[float, ...]
    """By each of `BUDGETS`."""
    autoccl_rounds: tuple[float, ...]
    """That it made; it makes a few at least."""
    paper: tuple[float, ...]
    knowing: float
    """Of a planner that knows the machine, with settings of its own."""
    won: tuple[float, ...]
    """After each of `LOOKS`, the gains of all machines together over those of such a
    planner."""
    profiled_won: tuple[float, ...]


def table(rows: Sequence[Row]) -> str:
    titles = (
        *("case", "candidates", "within 1 % of the best", "slower at the end"),
        *("plan alone: within 1 %", "slower", "shorter, median", "plan alone", "best"),
        *("over after step", "rounds of settings", "steps on trial: mean", "most"),
        *("steps' time lost, mean", "worst step"),
    )
    lines = [f"| {' | '.join(titles)} |", "|---|" + "--:|" * (len(titles) - 1)]
    for row in rows:
        cells = (
            *(row.case, row.candidates, f"{row.near_best:.1%}"),
            f"{row.slower} of {row.machines}",
            *(f"{row.plan_near_best:.1%}", row.plan_slower),
            *(f"{row.gain:.1%}", f"{row.plan_gain:.1%}", f"{row.best_gain:.1%}"),
            *(row.ended, f"{row.rounds:.1f}", f"{row.trials:.1f}", row.most_trials),
            *(f"{row.lost:.2f}", f"+{row.worst:.1%}"),
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def beside_table(rows: Sequence[BesideOthers]) -> str:
    """Gains of jobs, of plans and of other policies."""

    def listed(what: str, values: Sequence[int]) -> list[str]:
        return [f"{what} {values[0]}", *map(str, values[1:])]

    titles = [
        *("case", "plan", *listed("job after", LOOKS), "plan, profiled"),
        *(*listed("job, profiled, after", LOOKS), *listed("AutoCCL by", BUDGETS)),
        *(*listed("paper's descent by", BUDGETS), "a planner that knows"),
        *(*listed("won of that after", LOOKS), *listed("profiled, after", LOOKS)),
    ]
    lines = [f"| {' | '.join(titles)} |", "|---|" + "--:|" * (len(titles) - 1)]
    for row in rows:
        shares = (
            *(row.plan, *row.gains, row.profiled_plan, *row.profiled_gains),
            *(*row.autoccl, *row.paper, row.knowing),
        )
        cells = [f"{one:.1%}" for one in shares]
        cells += [f"{one:.0%}" for one in (*row.won, *row.profiled_won)]
        lines.append(f"| {row.case} | {' | '.join(cells)} |")
    return "\n".join(lines)


def won_in_words(rows: Sequence[BesideOthers]) -> str:
    """Ranges of what is won, after so many steps."""
    told: list[str] = []
    for place, look in enumerate(LOOKS):
        plain = [row.won[place] for row in rows]
        known = [row.profiled_won[place] for row in rows]
        told.append(
            f"after {look} steps {min(plain):.0%} to {max(plain):.0%} without a "
            f"profile and {min(known):.0%} to {max(known):.0%} with one"
        )
    return "; ".join(told)


def page(
    rows: Sequence[Row], right: Sequence[BesideOthers], off: Sequence[BesideOthers]
) -> str:
    """The page of the benchmark."""
    jobs = sum(row.machines for row in rows)
    near = sum(row.near_best * row.machines for row in rows) / jobs
    slower = sum(row.slower for row in rows)
    alone = sum(row.plan_near_best * row.machines for row in rows) / jobs
    alone_slower = sum(row.plan_slower for row in rows)
    lacking = [name for name in EIGHT if name not in {row.case for row in rows}]
    made = "; ".join(
        f"{row.case} is {STEPS[row.case][0]} on {STEPS[row.case][1]}, "
        f"{STEPS[row.case][2]['layers']} layers, {row.machines} machines"
        for row in rows
    )
    missing = f" Not run: {', '.join(lacking)}." if lacking else ""
    some = max((row.machines for row in (*right, *off)), default=0)
    return f"""# Tuning while a job trains

Made by
`python scripts/bench_online.py --rows ROWS --steps {rows[0].steps} --some {some}` and
`python scripts/bench_online.py --rows ROWS --docs`, {rows[0].compiles} compiles for
each plan, {rows[0].versions}.
{made}.{missing} Nothing ran on a GPU: each job runs on a machine whose step times are
the replay's, under constants that are drawn as those of the ensemble are, with
another seed, and disturbed: noise of {noise_in_words()}, drift, hosts that lag for a
while, single steps that take up to four times as long. The search is the one that
runs in a job (`lagom_jax.online`), and begins after {BEGINS} steps; where it has come
to an end it is offered the settings around what it stands on, {ROUNDS} times at most.

Of {jobs} jobs of {rows[0].steps} steps {near:.1%} end within 1 % of the best of all
candidates that they were offered, and {slower} end slower than the step as it is, by
more than a thousandth. With the plan alone, planned once and never measured,
{alone:.1%} are within 1 %, and {alone_slower} are slower. With models that are off by 2
to 4 times a job wins, of what a planner that knows the machine would win,
{won_in_words(off)}.

## All machines

*Steps on trial* are those made by what was not believed the best; *steps' time lost*
is what all of them together took longer than the step as it is, in steps; the *worst
step* is the longest of any job, but for what disturbs it; *rounds of settings* is how
often settings around a candidate were asked for, mean.

{table(rows)}

## Beside other ways

Times by which a step is shorter than as it is, medians over {some} of these machines.
*Profiled*: the machine has written a profile of two steps of the program as it is, as
GPUs write it; it was read by the reader that reads real ones, became a calibration, and
what was compiled was looked at again with it. (A job plans with it from the beginning.)
AutoCCL and the paper's descent set NCCL's settings of the program as it is, by as many
steps as a job may spend on trial after {LOOKS[0]}, {LOOKS[-1]} and 5000 steps; a step
of AutoCCL tries one setting for every group of collectives, and it makes
{_least_rounds(right)} steps at least. Both are told the machine's own times without
noise, and the times alone of all settings. *A planner that knows* has the machine's own
constants, and finds settings of its own for each program that was compiled: *won of
that* is the share of its gains, over all machines together, that the job has.

{beside_table(right)}

## With a wrong model

The same on machines where the times of matmuls, of collectives and of the network are
off by 2 to 4 times, each up or down, which no model of the ensemble allows for.

{beside_table(off)}
"""


def _least_rounds(rows: Sequence[BesideOthers]) -> int:
    return round(min((row.autoccl_rounds[0] for row in rows), default=0))


def noise_in_words() -> str:
    """The range of a step's noise, as `Weather.drawn` has it."""
    found = [Weather.drawn(random.Random(seed)).noise for seed in range(1000)]
    return f"{min(found):.1%} to {max(found):.1%}"
