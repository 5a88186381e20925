"""Stage `obeyed`: does NCCL do what the tuner plugin says, call by call?

Calls are made one by one, under sets of rules that are exchanged while the communicator
lives, and NCCL's own log is read after each. docs/how-to/gpu-check.md has more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from gpu_stages.gpu import Gpu, Libraries
from gpu_stages.obeyed_calls import BUFFER_BYTES, GENERATIONS, Verdict, verdicts
from gpu_stages.stage import Check, Clock, Listing, Outcome, Request, say
from gpu_stages.steering import Steering, all_ranks

_MOST_BYTES: Final = 1 << 26
_SECONDS_AFTER: Final = 5.0
_MOST_FINDINGS: Final = 8


def run(request: Request) -> Outcome:
    """Makes the calls, and compares."""
    clock = Clock(request)
    buffers = {"NCCL_BUFFSIZE": str(BUFFER_BYTES)}
    steering = Steering(request.path / "nccl.log", buffers)
    libraries = Libraries.load(request)
    gpu = Gpu(libraries, request.patience)
    found: list[Verdict] = []
    failed: list[str] = []
    try:
        with all_ranks(gpu, _MOST_BYTES) as ranks:
            for some in verdicts(gpu, ranks, steering, _MOST_BYTES):
                found += some
                say(f"{len(found)} calls")
                if clock.left() < _SECONDS_AFTER:
                    break
    except Exception as error:
        if not found:
            raise
        failed.append(
            f"NCCL failed after {len(found)} calls ({type(error).__name__}): {error}."
        )
    wrong = [verdict for verdict in found if verdict.outcome == "otherwise"]
    made = [verdict for verdict in found if verdict.outcome != "not offered"]
    return Outcome(
        checks=(
            *_checks(made),
            Check("failures of NCCL", len(failed), at_most=0),
        ),
        listings=(
            Listing(
                "Calls",
                ("call", "bytes", "rules", "asked", "NCCL's log", "done"),
                tuple(
                    (
                        *(one.function, one.nbytes, one.generation + 1, one.asked),
                        *(one.done, one.why or one.outcome),
                    )
                    for one in (*wrong, *(one for one in made if not one.why))
                ),
            ),
        ),
        findings=(*failed, *map(_sentence, wrong[:_MOST_FINDINGS])),
        left_out=tuple(_not_made(found)),
        versions=(("NCCL that was asked", libraries.release_name()),),
    )


def _checks(made: Sequence[Verdict]) -> Iterator[Check]:
    for when, part in (
        ("under the first rules", [v for v in made if not v.generation]),
        ("after an exchange of rules", [v for v in made if v.generation]),
    ):
        if part:
            wrong = sum(v.outcome == "otherwise" for v in part)
            title = f"calls that NCCL runs otherwise {when}, of {len(part)}"
            yield Check(title, wrong, at_most=0)


def _sentence(one: Verdict) -> str:
    return (
        f"NCCL was asked to run {one.function} of {one.nbytes} bytes as {one.asked}, "
        f"and logs: {one.done} ({one.why})."
    )


def _not_made(found: Sequence[Verdict]) -> Iterator[str]:
    nothing = Counter(
        f"{verdict.function} as {verdict.way}"
        for verdict in found
        if verdict.outcome == "not offered"
    )
    if nothing:
        yield (
            f"{nothing.total()} calls were left to NCCL, which does not offer here "
            f"what was asked: {', '.join(sorted(nothing))}."
        )
    generations = len({verdict.generation for verdict in found})
    if generations < GENERATIONS:
        yield (
            f"The time was over after {generations} of {GENERATIONS} generations of "
            "rules."
        )
