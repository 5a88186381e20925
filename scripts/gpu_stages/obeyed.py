"""Whether NCCL does what the tuner plugin says, call by call.

Twice: with all ranks in this process, which shares one GPU among them, and with a
process for each rank, which NCCL takes for hosts. docs/validation/README.md has more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from gpu_stages.cuda import nccl
from gpu_stages.cuda.binding import CallError
from gpu_stages.cuda.libraries import Libraries, Places, load
from gpu_stages.cuda.runtime import Gpu, HungError
from gpu_stages.logs import last_words
from gpu_stages.nccl_sharing import ON_ONE_HOST, check_release, in_words
from gpu_stages.obeying import rank
from gpu_stages.obeying.asked import BUFFER_BYTES, GENERATIONS
from gpu_stages.obeying.asking import ask
from gpu_stages.obeying.verdict import DONE, NOT_OFFERED, OTHERWISE, Verdict
from gpu_stages.opening import patience, places
from gpu_stages.stage import (
    CannotRunError,
    Clock,
    Outcome,
    Request,
    Row,
    Score,
    Spread,
    say,
)
from gpu_stages.steering import (
    RANKS,
    Steering,
    all_ranks_here,
    alone,
)
from lagom_jax import processes

_TOGETHER: Final = "ranks in one process"
_APART: Final = "a process for each rank"
_MOST_BYTES: Final = 1 << 26
_SECONDS_AFTER: Final = 5.0
_MOST_FINDINGS: Final = 8
_POLL_SECONDS: Final = 0.05


class RankError(Exception):
    """No rank could ask NCCL anything."""


def run(request: Request) -> Outcome:
    """Makes the calls, and compares."""
    clock = Clock.of(request)
    # It sets this process's environment, from which the ranks apart then start.
    before = dict(os.environ)
    steering = Steering(
        request.folder / "nccl.log",
        ON_ONE_HOST | {"NCCL_BUFFSIZE": str(BUFFER_BYTES)},
        alone,
    )
    where = places(request)
    libraries = load(where)
    release = nccl.release(libraries.nccl)
    found: dict[str, list[Verdict]] = {_TOGETHER: [], _APART: []}
    left_out: list[str] = []
    failed: list[str] = []
    for way, asking in (
        (_TOGETHER, _together(request, libraries, release, steering, clock)),
        (_APART, _apart(request, where, release, before, clock)),
    ):
        try:
            for some in asking:
                found[way] += some
                _say_so_far(way, found[way])
            left_out += _not_made(way, found[way])
        except CannotRunError as error:
            left_out.append(f"With {way}, nothing was asked: {error}.")
        except (HungError, CallError, RankError) as error:
            failed.append(
                f"With {way}, NCCL failed after {len(found[way])} calls: {error}."
            )
    if not any(found.values()):
        raise RankError(" ".join([*failed, *left_out]))
    return Outcome(
        rows=[
            _row(way, verdict)
            for way, verdicts in found.items()
            for verdict in verdicts
            if verdict.outcome != NOT_OFFERED
        ],
        scores=list(_scores(found)),
        findings=[*failed, *_findings(found)],
        left_out=left_out,
        versions={"NCCL that was asked": in_words(release)},
    )


def _together(
    request: Request,
    libraries: Libraries,
    release: int,
    steering: Steering,
    clock: Clock,
) -> Iterator[list[Verdict]]:
    check_release(release)
    gpu = Gpu(libraries, patience(request))
    with all_ranks_here(gpu, _MOST_BYTES, patience(request)) as ranks:
        half = clock.left() / 2
        for some in ask(
            gpu, ranks, steering, most_bytes=_MOST_BYTES, takes_chunks=_chunks(release)
        ):
            yield some
            if clock.left() < half:
                break


def _apart(
    request: Request,
    where: Places,
    release: int,
    environment: dict[str, str],
    clock: Clock,
) -> Iterator[list[Verdict]]:
    folder = request.folder / "apart"
    folder.mkdir()
    told = rank.Told(
        {name: str(path) for name, path in dataclasses.asdict(where).items()},
        patience(request),
        _chunks(release),
    )
    (folder / "ranks.json").write_text(json.dumps(dataclasses.asdict(told)))
    paths = {"PYTHONPATH": processes.environment()["PYTHONPATH"]}
    with contextlib.ExitStack() as stack:
        children = [
            stack.enter_context(_rank(folder, number, environment | paths))
            for number in range(RANKS)
        ]
        while (
            any(child.poll() is None for child in children)
            and not any(child.poll() for child in children)
            and clock.left() > _SECONDS_AFTER
        ):
            time.sleep(_POLL_SECONDS)
        failed = [number for number in range(RANKS) if children[number].poll()]
    written = folder / "verdicts.json"
    if written.exists():
        yield [Verdict(**one) for one in json.loads(written.read_text())]
    if failed:
        words = [
            f"rank {number} said: {last_words(folder / f'rank-{number}.txt')}"
            for number in failed
        ]
        raise RankError("; ".join(words))


@contextlib.contextmanager
def _rank(
    folder: Path, number: int, environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """A rank's process, ended with the block."""
    with (folder / f"rank-{number}.txt").open("wb") as words:
        child = subprocess.Popen(
            processes.python("-m", rank.__name__, str(folder), str(number)),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=words,
        )
        try:
            yield child
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait()


def _chunks(release: int) -> bool:
    """Whether this NCCL asks for chunks."""
    return release >= nccl.FIRST_WITH_CHUNKS


def _say_so_far(way: str, verdicts: Sequence[Verdict]) -> None:
    count = Counter(verdict.outcome for verdict in verdicts)
    words = ", ".join(f"{number} {outcome}" for outcome, number in count.items())
    say(f"{way}: {words}")


def _row(way: str, verdict: Verdict) -> Row:
    return Row(
        f"calls, {way}",
        f"{verdict.function} of {verdict.nbytes} bytes, rules {verdict.generation + 1}",
        Spread.of([float(verdict.channels_used)]),
        unit="channels",
        details={
            "asked": verdict.asked,
            "NCCL says": verdict.said,
            "done": verdict.why or verdict.outcome,
        },
    )


def _scores(found: dict[str, list[Verdict]]) -> Iterator[Score]:
    for way, verdicts in found.items():
        for when, some in (
            ("under the first rules", [v for v in verdicts if not v.generation]),
            ("after an exchange of rules", [v for v in verdicts if v.generation]),
        ):
            offered = [v for v in some if v.outcome != NOT_OFFERED]
            if offered:
                done = sum(v.outcome == DONE for v in offered)
                yield Score(
                    f"calls that NCCL runs as asked {when}, {way}, of {len(offered)}",
                    done / len(offered),
                    least=1.0,
                    unit="%",
                )


def _findings(found: dict[str, list[Verdict]]) -> Iterator[str]:
    for way, verdicts in found.items():
        wrong = [verdict for verdict in verdicts if verdict.outcome == OTHERWISE]
        for verdict in wrong[:_MOST_FINDINGS]:
            yield (
                f"With {way}, NCCL was asked to run {verdict.function} of "
                f"{verdict.nbytes} bytes as {verdict.asked}, and says: {verdict.said} "
                f"({verdict.why})."
            )
        if len(wrong) > _MOST_FINDINGS:
            by_function = Counter(verdict.function for verdict in wrong)
            counts = ", ".join(f"{name} {n}" for name, n in by_function.items())
            yield f"With {way}, {len(wrong)} calls were run otherwise: {counts}."


def _not_made(way: str, verdicts: Sequence[Verdict]) -> Iterator[str]:
    nothing = Counter(
        (verdict.function, verdict.asked.partition(",")[0])
        for verdict in verdicts
        if verdict.outcome == NOT_OFFERED
    )
    if nothing:
        names = ", ".join(f"{function} as {how}" for function, how in sorted(nothing))
        yield (
            f"With {way}, {nothing.total()} calls were left to NCCL, which does not "
            f"offer here what was asked: {names}."
        )
    generations = len({verdict.generation for verdict in verdicts})
    if generations < GENERATIONS:
        yield (
            f"With {way}, the time was over after {generations} of {GENERATIONS} "
            "generations of rules."
        )
