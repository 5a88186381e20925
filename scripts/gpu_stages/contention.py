"""Stage `contention`: do NCCL and kernels slow each other as the model says?

Two ranks of one communicator share the GPU, steered by the tuner plugin, so that one
set of communicators serves all settings. docs/how-to/gpu-check.md has the method.
"""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from gpu_stages import nccl_log
from gpu_stages.clusters import cluster_of
from gpu_stages.contention_bench import MOST_BYTES, Bench, NotCoveredError, Task
from gpu_stages.contention_cases import (
    CollectiveCase,
    KernelCase,
    collective_cases,
    kernel_cases,
)
from gpu_stages.contention_law import (
    NAMES,
    Measured,
    Predictor,
    fitted,
    worth_keeping,
)
from gpu_stages.gpu import Gpu, HungError, Libraries, Ranks
from gpu_stages.nccl_log import Ran
from gpu_stages.stage import (
    Check,
    Clock,
    Outcome,
    Request,
    Row,
    Spread,
    Table,
    say,
)
from gpu_stages.steering import ON_ONE_HOST, RANKS, Steering, all_ranks_here, alone
from lagom_jax.cost.constants import load_constants
from lagom_jax.cost.sharing import SharingConstants, load_sharing_constants
from lagom_jax.tuner import Rule, Rules, Scope
from lagom_jax.tuner.rules import MOST_BYTES as LARGEST_SIZE

_TURNS, _DRY_TURNS = 7, 3
# Every so many settings in a dry run.
_DRY_STEP: Final = 6
_SMALL_BYTES: Final = 1 << 20
# For the fit, and for writing it all down.
_SECONDS_AFTER: Final = 20.0
_MEDIAN_GOAL, _NINTH_GOAL = 0.05, 0.10
# Fewer rows on either side say nothing about constants.
_LEAST_ROWS: Final = 12
_WORST: Final = 3
_MATMULS: Final = "matmuls.csv"


@dataclasses.dataclass(slots=True)
class _Found:
    """Everything that was measured, and what was not."""

    rows: list[Measured] = dataclasses.field(default_factory=list[Measured])
    findings: list[str] = dataclasses.field(default_factory=list[str])
    left_out: list[str] = dataclasses.field(default_factory=list[str])


def run(request: Request) -> Outcome:
    """Measures, predicts, fits, and checks what was kept out of the fit."""
    clock = Clock.of(request)
    steering = Steering(request.folder / "nccl.log", ON_ONE_HOST, alone)
    libraries = Libraries.load(request)
    gpu = Gpu(libraries, request.patience)
    try:
        with all_ranks_here(gpu, MOST_BYTES) as ranks:
            found = _Measuring(gpu, ranks, steering, dry=request.dry).run(clock)
    except HungError as error:
        raise HungError(
            f"{error}; NCCL's communicators were aborted. Ranks that share a GPU wait "
            "for each other: see that nothing else runs on it"
        ) from error
    record = cluster_of(request.gpu).gpu
    if gpu.sm_count != record.sm_count:
        found.findings.append(
            f"The GPU has {gpu.sm_count} SMs, and its record {request.gpu} "
            f"{record.sm_count}; predictions are for the record."
        )
    _write_matmuls(found.rows, request)
    release = ".".join(map(str, libraries.nccl_release()))
    return dataclasses.replace(
        judged(found.rows, request.gpu, found.findings, found.left_out),
        tables=[Table("--matmuls", _MATMULS)],
        versions={"NCCL that was measured": release},
    )


class _Measuring:
    """Goes through settings and kernels, as far as the time reaches."""

    def __init__(
        self, gpu: Gpu, ranks: Ranks, steering: Steering, *, dry: bool
    ) -> None:
        self._gpu, self._ranks, self._steering = gpu, ranks, steering
        self._bench = Bench(gpu, ranks, _DRY_TURNS if dry else _TURNS)
        self._collectives = collective_cases()[:: _DRY_STEP if dry else 1]
        self._offered = steering.offer().offered
        stream = gpu.stream(urgent=False)
        self._kernels = [
            (
                case,
                Task(
                    (stream,),
                    gpu.triad(stream, case.elements)
                    if case.elements
                    else gpu.matmul(stream, case.work.matmuls[0]),
                ),
            )
            for case in kernel_cases()
        ]
        self._found = _Found()

    def run(self, clock: Clock) -> _Found:
        """Measures until all is done or the time is over."""
        longest = 0.0
        for number, case in enumerate(self._collectives):
            before = clock.left()
            if before < _SECONDS_AFTER + longest:
                rest = ", ".join(map(str, self._collectives[number:]))
                self._found.left_out.append(f"The time was over before: {rest}.")
                break
            try:
                self._with(case)
            except Exception as error:
                if not self._found.rows:
                    raise
                self._found.findings.append(
                    f"It ended with {case}: {error}. Nothing was measured after it."
                )
                break
            longest = max(longest, before - clock.left())
            say(f"{number + 1}/{len(self._collectives)}: {case}")
        return self._found

    def _with(self, case: CollectiveCase) -> None:
        """All kernels with one collective."""
        answer, function = case.answer, case.function
        if (function, answer.algorithm, answer.protocol) not in self._offered:
            self._found.left_out.append(f"NCCL does not offer this here: {case}.")
            return
        rule = Rule(function, 0, LARGEST_SIZE, answer)
        self._steering.hold(Rules((Scope(RANKS, rules=(rule,)),)))
        ratio = RANKS if function in ("all-gather", "reduce-scatter") else 1
        self._ranks.launch_first(function, _SMALL_BYTES)
        self._gpu.finish(*self._ranks.streams)
        per_rank = self._bench.size(function, ratio)
        ran = self._ran(function, per_rank)
        if ran is None or not _as_asked(ran, case):
            self._found.findings.append(
                f"NCCL was asked for {case} of {per_rank} bytes of each rank, and logs "
                f"{ran}: nothing was measured with it."
            )
            return
        task = self._bench.collective(function, per_rank)
        for kernel, kernel_task in self._kernels:
            self._pair(kernel, kernel_task, case, task, ran, per_rank * ratio)

    def _ran(self, function: str, per_rank: int) -> Ran | None:
        """NCCL's log of one more call of this size."""
        self._steering.log.new_lines()
        self._bench.alone(self._bench.collective(function, per_rank), 1)
        ran = nccl_log.ran(self._steering.log.new_lines())
        return ran[-1] if ran else None

    def _pair(
        self,
        kernel: KernelCase,
        kernel_task: Task,
        case: CollectiveCase,
        task: Task,
        ran: Ran,
        nbytes: int,
    ) -> None:
        try:
            pair = self._bench.pair(kernel_task, task)
        except NotCoveredError as error:
            self._found.left_out.append(f"{kernel.name} with {case}: {error}.")
            return
        self._found.rows.append(Measured(kernel, case, ran.channels, nbytes, pair))


def judged(
    rows: Sequence[Measured],
    gpu: str,
    findings: Sequence[str] = (),
    left_out: Sequence[str] = (),
) -> Outcome:
    """The answer that measured pairs give.

    Args:
        rows: All pairs.
        gpu: Record of the GPU.
        findings: From measuring.
        left_out: From measuring.
    """
    cluster = cluster_of(gpu)
    predictor = Predictor(cluster, load_constants(cluster))
    old = load_sharing_constants(cluster.gpu)
    used = [row for row in rows if not row.kept_out]
    apart = [row for row in rows if row.kept_out]
    new = old
    if min(len(used), len(apart)) < _LEAST_ROWS:
        left_out = [
            *left_out,
            f"Constants were not fitted: {len(used)} rows for a fit and {len(apart)} "
            f"kept out are too few, it takes {_LEAST_ROWS} of each.",
        ]
    else:
        best = fitted(used, predictor, old)
        new = worth_keeping(apart, predictor, old, best)
    return Outcome(
        checks=list(_checks(apart, predictor, old, new)) if apart else [],
        rows=[
            *(_kernel_row(row, predictor, old, new) for row in rows),
            *(_collective_row(row, predictor, old, new) for row in rows),
        ],
        findings=[*findings, *_findings(apart, predictor, new)],
        left_out=left_out,
        constants={
            name: value if isinstance(value, bool) else round(value, 4)
            for name in NAMES
            if (value := getattr(new, name)) != getattr(old, name)
        },
    )


def _as_asked(ran: Ran, case: CollectiveCase) -> bool:
    answer = case.answer
    asked = (case.function, answer.algorithm, answer.protocol, answer.channels)
    return asked == (ran.function, ran.algorithm, ran.protocol, ran.channels)


def _kernel_row(
    row: Measured, predictor: Predictor, old: SharingConstants, new: SharingConstants
) -> Row:
    load = predictor.kernel_load(row)
    return Row(
        "kernels slowed by collectives",
        f"{row.kernel.name} with {row.collective}",
        row.kernel_slowdown,
        "x",
        predictor.kernel(row, old),
        row.kept_out,
        {
            "after the fit": round(predictor.kernel(row, new), 3),
            "us alone": _us(row.pair.kernel_alone),
            "us of the collective alone": _us(row.pair.collective_alone),
            "bytes of the collective": row.nbytes,
            "share of memory": round(load.memory_share, 3),
            "tiles": load.tiles,
        },
    )


def _collective_row(
    row: Measured, predictor: Predictor, old: SharingConstants, new: SharingConstants
) -> Row:
    return Row(
        "collectives slowed by kernels",
        f"{row.collective} with {row.kernel.name}",
        row.collective_slowdown,
        "x",
        predictor.collective(row, old),
        row.kept_out,
        {
            "after the fit": round(predictor.collective(row, new), 3),
            "us alone": _us(row.pair.collective_alone),
            "us of the kernel alone": _us(row.pair.kernel_alone),
            "bytes": row.nbytes,
        },
    )


def _us(seconds: Sequence[float]) -> float:
    return round(1e6 * float(np.median(seconds)), 2)


def _checks(
    apart: Sequence[Measured],
    predictor: Predictor,
    old: SharingConstants,
    new: SharingConstants,
) -> Iterator[Check]:
    """Errors in points: parts of the time that the task takes alone."""
    for when, sharing, goals in (
        ("as estimated", old, (None, None)),
        ("after the fit", new, (_MEDIAN_GOAL, _NINTH_GOAL)),
    ):
        kernels = predictor.errors(apart, sharing)
        collectives = np.array(
            [
                predictor.collective(row, sharing) - row.collective_slowdown.median
                for row in apart
            ]
        )
        for what, errors, most in (
            ("kernels", kernels, goals),
            ("collectives", collectives, (None, None)),
        ):
            for name, share, goal in (
                ("median", 50, most[0]),
                ("90th percentile", 90, most[1]),
            ):
                yield Check(
                    f"slowdown of {what} {when}, kept out, {name} of the error",
                    float(np.percentile(np.abs(errors), share)),
                    at_most=goal,
                    unit="%",
                )


def _findings(
    apart: Sequence[Measured], predictor: Predictor, new: SharingConstants
) -> Iterator[str]:
    """The worst of the rows that were kept out."""
    errors = predictor.errors(apart, new)
    for number in np.argsort(-np.abs(errors))[:_WORST]:
        row, error = apart[number], errors[number]
        if abs(error) > _NINTH_GOAL:
            yield (
                f"{row.kernel.name} with {row.collective} takes "
                f"{row.kernel_slowdown.median:.2f} times as long as alone; after the "
                f"fit the model says {row.kernel_slowdown.median + error:.2f}."
            )


def _write_matmuls(rows: Sequence[Measured], request: Request) -> None:
    """The products' times alone, as `lagom calibrate --matmuls` reads them."""
    alone: dict[str, tuple[KernelCase, list[float]]] = {}
    for row in rows:
        if row.kernel.work.matmuls:
            _, times = alone.setdefault(row.kernel.name, (row.kernel, []))
            times += row.pair.kernel_alone
    with (request.folder / _MATMULS).open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("gpu", "batch", "m", "n", "k", "types", "microseconds"))
        for kernel, times in alone.values():
            (matmul,) = kernel.work.matmuls
            sides = (matmul.batch, matmul.m, matmul.n, matmul.k)
            median = Spread.of(times).median
            table.writerow((request.gpu, *sides, "bf16xbf16->bf16", 1e6 * median))
