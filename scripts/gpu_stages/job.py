"""Training steps of several processes on one GPU, with `lagom_jax.tune` and without.

Each case is two jobs of processes that `jax.distributed` joins: one that knows nothing
of lagom_jax, and one behind `lagom_jax.tune(step, verify="measure")`. The second must
have the losses of the first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from gpu_stages.jobs.cases import Case, cases
from gpu_stages.jobs.member import Found, Part
from gpu_stages.jobs.sharing import Sharing, on_cpus, on_one_gpu
from gpu_stages.jobs.together import (
    Member,
    TogetherError,
    on_a_free_port,
    run_together,
)
from gpu_stages.stage import Clock, Outcome, Request, Row, Score, Spread, say
from lagom_jax.planning.make import LEVERS

# Below that much time no other case is begun: what two jobs of it take to compile.
_LEAST_SECONDS: Final = 70.0
# One that hangs must leave time for others.
_MOST_SECONDS: Final = 180.0
_KEPT_BACK: Final = 5.0
_NO_SPEEDUP: Final = (
    "a speedup: the processes run {how}, so that their times show that plan, guard and "
    "NCCL work together in a real job, not what a plan gains on GPUs of their own."
)


class JobError(Exception):
    """No job came to its end."""


@dataclasses.dataclass(frozen=True, slots=True)
class Compared:
    """The two jobs of a case, as all of their processes tell it."""

    case: Case
    usual: Sequence[Found]
    tuned: Sequence[Found]


def run(request: Request) -> Outcome:
    """Runs the stage."""
    clock = Clock.of(request)
    compared: list[Compared] = []
    failures: list[str] = []
    left_out: list[str] = []
    with _sharing(request) as sharing:
        say(f"processes run {sharing.how}")
        for case in cases(request.dry):
            if (compared or failures) and clock.left() < _LEAST_SECONDS:
                left_out.append(f"{case.name}: {clock.left():.0f} s were left.")
                continue
            try:
                compared.append(_compare(case, request, sharing, clock))
            except TogetherError as error:
                say(f"{case.name}: {error}")
                failures.append(f"{case.name} came to no end: {error}.")
    if not compared:
        raise JobError(" ".join(failures))
    left_out.append(_NO_SPEEDUP.format(how=sharing.how))
    return Outcome(
        rows=[row for one in compared for row in rows(one)],
        scores=[score for one in compared for score in scores(one)],
        findings=[*failures, *(text for one in compared for text in findings(one))],
        left_out=left_out,
        versions={} if sharing.nccl is None else {"NCCL": sharing.nccl},
    )


@contextlib.contextmanager
def _sharing(request: Request) -> Iterator[Sharing]:
    if request.dry:
        yield on_cpus()
    else:
        with on_one_gpu(request.folder) as sharing:
            yield sharing


def _compare(case: Case, request: Request, sharing: Sharing, clock: Clock) -> Compared:
    part = Part(
        case,
        tuned=False,
        cluster=sharing.cluster(request.gpu, case.processes),
        # What two compiles find something with.
        levers=["options"] if request.dry else list(LEVERS),
        compiles=2 if request.dry else 4,
        planning_seconds=60.0,
    )
    name = case.name.replace(" ", "-").lower()
    usual = _job(part, request.folder / f"{name}-usual", sharing, clock)
    behind = dataclasses.replace(part, tuned=True)
    tuned = _job(behind, request.folder / f"{name}-tuned", sharing, clock)
    return Compared(case, usual, tuned)


def _job(part: Part, folder: Path, sharing: Sharing, clock: Clock) -> list[Found]:
    """Runs one job; what each of its processes found."""
    say(f"{part.case.name}, {'tuned' if part.tuned else 'as it is'} ...")
    folder.mkdir()
    part.write(folder / "part.json")
    count = part.case.processes

    def on(port: int) -> None:
        members = [
            Member(
                ("-m", "gpu_stages.jobs.member", str(folder), str(index), str(port)),
                sharing.environment(index, count),
                folder / f"{index}.log",
            )
            for index in range(count)
        ]
        run_together(members, min(clock.left() - _KEPT_BACK, _MOST_SECONDS))

    on_a_free_port(on)
    return [Found.read(folder / f"{index}.json") for index in range(count)]


def rows(one: Compared) -> Iterator[Row]:
    """What steps took: in turns in one job, and in the job without lagom_jax."""
    first, usual = one.tuned[0], one.usual[0]
    told = {
        "baseline": {"losses": _in_short(usual.losses["usual"])},
        "tuned": {
            "losses": _in_short(first.losses["guarded"]),
            "guard": first.verdict,
            "plan": first.plan,
        },
    }
    for side, details in told.items():
        if times := first.seconds.get(side):
            yield Row(
                "steps of a job in turns",
                f"{one.case.name}, {side}",
                _milliseconds(times),
                unit="ms",
                details=details,
            )
    yield Row(
        "steps of a job without lagom_jax",
        one.case.name,
        _milliseconds(usual.seconds["usual"]),
        unit="ms",
        details={"devices": usual.devices},
    )


def scores(one: Compared) -> Iterator[Score]:
    """Whether losses are the same, and how long a step is beside the baseline."""
    first = one.tuned[0]
    yield Score(
        f"{one.case.name}: largest difference of losses",
        difference(first.losses["guarded"], one.usual[0].losses["usual"]),
        most=0.0 if _must_be_equal(one) else None,
    )
    if times := first.seconds.get("tuned"):
        baseline = Spread.of(first.seconds["baseline"]).median
        yield Score(
            f"{one.case.name}: a tuned step over one of the baseline",
            Spread.of(times).median / baseline,
        )


def findings(one: Compared) -> Iterator[str]:
    """What is not as it should be, in whole sentences."""
    name, usual, first = one.case.name, one.usual[0], one.tuned[0]
    if own := difference(usual.losses["usual"], usual.losses["again"]):
        yield (
            f"{name}: the program as it is does not repeat its own losses, which "
            f"differ by up to {own:g}; no plan can do better."
        )
    if off := difference(first.losses["guarded"], usual.losses["usual"]):
        why = "though" if first.deterministic else "and"
        keeps = "keeps" if first.deterministic else "does not keep"
        yield (
            f"{name}: losses with the plan differ by up to {off:g} from those without, "
            f"{why} the plan {keeps} the order of sums."
        )
    for run, jobs in (("usual", one.usual), ("guarded", one.tuned)):
        if any(found.losses[run] != jobs[0].losses[run] for found in jobs):
            yield f"{name}: processes of the {run} job have different losses."
    for reason in dict.fromkeys(
        word for found in one.tuned for word in found.fallbacks
    ):
        yield f"{name}: {_in_a_line(reason)}."
    if not first.plan:
        yield f"{name}: no plan would change anything, so that nothing was compared."
    elif not first.verdict:
        yield f"{name}: the guard came to no decision."
    elif not first.kept:
        yield f"{name}: the guard did not keep the plan: {first.verdict}."
    if first.untold:
        yield f"{name}: NCCL could not be told anything: {first.untold}."


def _must_be_equal(one: Compared) -> bool:
    usual = one.usual[0].losses
    return one.tuned[0].deterministic and usual["usual"] == usual["again"]


def difference(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest difference of two runs' losses; 0 if they are the same bit by bit.

    Example:
        >>> difference([1.0, 2.0], [1.0, 2.5]), difference([math.nan], [1.0])
        (0.5, inf)
    """
    if not all(map(math.isfinite, (*one, *other))):
        return math.inf
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def _in_short(losses: Sequence[float]) -> str:
    return f"{losses[0]:.6g} to {losses[-1]:.6g} in {len(losses)} steps"


def _milliseconds(seconds: Sequence[float]) -> Spread:
    return Spread.of([1e3 * one for one in seconds])


def _in_a_line(text: str, most: int = 400) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[:most] + " ..."
