"""Stage `obeyed`: does NCCL do what the tuner plugin says, call by call?

Twice: with all ranks in this process, which share one GPU, and with a process for each
rank, which NCCL takes for hosts. docs/validation/README.md has more.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from gpu_stages import obeyed_rank
from gpu_stages.gpu import Gpu, Libraries
from gpu_stages.obeyed_calls import (
    BUFFER_BYTES,
    DONE,
    GENERATIONS,
    NOT_OFFERED,
    OTHERWISE,
    Verdict,
    verdicts,
)
from gpu_stages.running import child_process, how_ended, last_line, wait_for
from gpu_stages.stage import (
    CannotRunError,
    Check,
    Clock,
    Outcome,
    Request,
    Row,
    Spread,
    say,
)
from gpu_stages.steering import ON_ONE_HOST, RANKS, Steering, all_ranks_here, alone
from lagom_jax import processes

_TOGETHER: Final = "ranks in one process"
_APART: Final = "a process for each rank"
_MOST_BYTES: Final = 1 << 26
_SECONDS_AFTER: Final = 5.0
_MOST_FINDINGS: Final = 8


class RankError(Exception):
    """A rank's process failed."""


def run(request: Request) -> Outcome:
    """Makes the calls, and compares."""
    clock = Clock.of(request)
    # Ranks in processes of their own start from an environment without our settings.
    before = processes.environment()
    steering = Steering(
        request.folder / "nccl.log",
        ON_ONE_HOST | {"NCCL_BUFFSIZE": str(BUFFER_BYTES)},
        alone,
    )
    libraries = Libraries.load(request)
    release = libraries.nccl_release()
    found: dict[str, list[Verdict]] = {_TOGETHER: [], _APART: []}
    left_out: list[str] = []
    failed: list[str] = []
    for way, calls in (
        (_TOGETHER, _together(request, libraries, steering, clock)),
        (_APART, _apart(request, before, clock)),
    ):
        try:
            for some in calls:
                found[way] += some
                say(f"{way}: {len(found[way])} calls")
            left_out += _not_made(way, found[way])
        except CannotRunError as error:
            left_out.append(f"With {way}, nothing was asked: {error}.")
        except Exception as error:
            failed.append(f"With {way}, NCCL failed after {len(found[way])} calls")
            failed[-1] += f" ({type(error).__name__}): {error}."
    if not any(found.values()):
        raise RankError(" ".join([*failed, *left_out]))
    return Outcome(
        checks=[
            *_checks(found),
            Check("ways of sharing in which NCCL failed", len(failed), at_most=0),
        ],
        rows=[
            _row(way, verdict)
            for way, some in found.items()
            for verdict in some
            if verdict.outcome != NOT_OFFERED
        ],
        findings=[*failed, *_findings(found)],
        left_out=left_out,
        versions={"NCCL that was asked": ".".join(map(str, release))},
    )


def _together(
    request: Request, libraries: Libraries, steering: Steering, clock: Clock
) -> Iterator[list[Verdict]]:
    gpu = Gpu(libraries, request.patience)
    with all_ranks_here(gpu, _MOST_BYTES) as ranks:
        half = clock.left() / 2
        for some in verdicts(gpu, ranks, steering, _MOST_BYTES, GENERATIONS):
            yield some
            if clock.left() < half:
                break


def _apart(
    request: Request, environment: dict[str, str], clock: Clock
) -> Iterator[list[Verdict]]:
    folder = request.folder / "apart"
    folder.mkdir()
    with contextlib.ExitStack() as stack:
        children = [
            stack.enter_context(
                child_process(
                    processes.python(
                        "-m", obeyed_rank.__name__, str(folder), str(number)
                    ),
                    environment,
                    folder / f"rank-{number}.txt",
                )
            )
            for number in range(RANKS)
        ]
        failed: list[int] = []
        # What was asked until then counts.
        with contextlib.suppress(TimeoutError):
            failed = wait_for(children, clock.left() - _SECONDS_AFTER)
        ends = [how_ended(children[number].returncode) for number in failed]
    written = folder / "verdicts.json"
    if written.exists():
        yield [Verdict(**one) for one in json.loads(written.read_text())]
    if failed:
        words = [
            f"rank {number} {end}: {last_line(folder / f'rank-{number}.txt')}"
            for number, end in zip(failed, ends, strict=True)
        ]
        raise RankError("; ".join(words))


def _row(way: str, verdict: Verdict) -> Row:
    return Row(
        f"calls, {way}",
        f"{verdict.function} of {verdict.nbytes} bytes, rules {verdict.generation + 1}",
        Spread.of([float(verdict.channels)]),
        "channels",
        details={
            "asked": verdict.asked,
            "NCCL's log": verdict.done,
            "done": verdict.why or verdict.outcome,
        },
    )


def _checks(found: dict[str, list[Verdict]]) -> Iterator[Check]:
    for way, some in found.items():
        for when, part in (
            ("under the first rules", [v for v in some if not v.generation]),
            ("after an exchange of rules", [v for v in some if v.generation]),
        ):
            offered = [v for v in part if v.outcome != NOT_OFFERED]
            if offered:
                done = sum(v.outcome == DONE for v in offered)
                yield Check(
                    f"calls that NCCL runs as asked {when}, {way}, of {len(offered)}",
                    done / len(offered),
                    at_least=1.0,
                    unit="%",
                )


def _findings(found: dict[str, list[Verdict]]) -> Iterator[str]:
    for way, some in found.items():
        wrong = [verdict for verdict in some if verdict.outcome == OTHERWISE]
        for verdict in wrong[:_MOST_FINDINGS]:
            yield (
                f"With {way}, NCCL was asked to run {verdict.function} of "
                f"{verdict.nbytes} bytes as {verdict.asked}, and logs: {verdict.done} "
                f"({verdict.why})."
            )
        if len(wrong) > _MOST_FINDINGS:
            by_function = Counter(verdict.function for verdict in wrong)
            counts = ", ".join(f"{name} {n}" for name, n in by_function.items())
            yield f"With {way}, {len(wrong)} calls ran otherwise: {counts}."


def _not_made(way: str, some: Sequence[Verdict]) -> Iterator[str]:
    nothing = Counter(
        (verdict.function, verdict.asked.partition(",")[0])
        for verdict in some
        if verdict.outcome == NOT_OFFERED
    )
    if nothing:
        names = ", ".join(f"{function} as {how}" for function, how in sorted(nothing))
        yield (
            f"With {way}, {nothing.total()} calls were left to NCCL, which does not "
            f"offer here what was asked: {names}."
        )
    generations = len({verdict.generation for verdict in some})
    if generations < GENERATIONS:
        yield (
            f"With {way}, the time was over after {generations} of {GENERATIONS} "
            "generations of rules."
        )
