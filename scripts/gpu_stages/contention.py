"""Stage `contention`: do NCCL and kernels slow each other as the model says?

Two ranks of one communicator share the GPU, steered by the tuner plugin, so that one
set of communicators serves all settings. docs/how-to/gpu-check.md has the method.
"""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np

from gpu_stages import nccl_log
from gpu_stages.contention_bench import MOST_BYTES, Bench, NotCoveredError, Task
from gpu_stages.contention_law import (
    CollectiveCase,
    KernelCase,
    Law,
    Measured,
    collective_cases,
    kernel_cases,
)
from gpu_stages.gpu import Gpu, HungError, Libraries, Ranks, per_rank_bytes
from gpu_stages.host import cluster_of
from gpu_stages.stage import Check, Clock, Listing, Outcome, Request, say
from gpu_stages.steering import RANKS, Steering, all_ranks
from lagom_jax.nccl_plugin import Rule, Rules, Scope
from lagom_jax.nccl_plugin.rules import MOST_BYTES as LARGEST_SIZE

_TURNS, _DRY_TURNS = 7, 3
# Every so many settings in a dry run.
_DRY_STEP: Final = 6
_SMALL_BYTES: Final = 1 << 20
# For writing it all down.
_SECONDS_AFTER: Final = 5.0
_MEDIAN_GOAL, _NINTH_GOAL = 0.05, 0.10
_WORST: Final = 3
_PAIRS, _MATMULS = "pairs.csv", "matmuls.csv"


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
        self.rows: list[Measured] = []
        self.findings: list[str] = []
        self.left_out: list[str] = []

    def run(self, clock: Clock) -> None:
        """Measures until all is done or the time is over."""
        longest = 0.0
        for number, case in enumerate(self._collectives):
            before = clock.left()
            if before < _SECONDS_AFTER + longest:
                rest = ", ".join(map(str, self._collectives[number:]))
                self.left_out.append(f"The time was over before: {rest}.")
                break
            try:
                self._with(case)
            except Exception as error:
                if not self.rows:
                    raise
                self.findings.append(
                    f"It ended with {case}: {error}. Nothing was measured after it."
                )
                break
            longest = max(longest, before - clock.left())
            say(f"{number + 1}/{len(self._collectives)}: {case}")

    def _with(self, case: CollectiveCase) -> None:
        """All kernels with one collective."""
        answer, function = case.answer, case.function
        if (function, answer.algorithm, answer.protocol) not in self._offered:
            self.left_out.append(f"NCCL does not offer this here: {case}.")
            return
        rule = Rule(function, 0, LARGEST_SIZE, answer)
        self._steering.hold(Rules((Scope(RANKS, rules=(rule,)),)))
        self._ranks.launch_first(function, _SMALL_BYTES)
        self._gpu.finish(*self._ranks.streams)
        nbytes = self._bench.size(function)
        per_rank = per_rank_bytes(function, nbytes, RANKS)
        task = self._bench.collective(function, per_rank)
        self._steering.log.new_lines()
        self._bench.alone(task, 1)
        ran = nccl_log.ran(self._steering.log.new_lines())
        asked = (function, answer.algorithm, answer.protocol, answer.channels)
        if not ran or ran[-1].setting != asked:
            self.findings.append(
                f"NCCL was asked for {case} of {per_rank} bytes of each rank, and logs "
                f"{ran[-1] if ran else None}: nothing was measured with it."
            )
            return
        for kernel, kernel_task in self._kernels:
            try:
                pair = self._bench.pair(kernel_task, task)
            except NotCoveredError as error:
                self.left_out.append(f"{kernel.name} with {case}: {error}.")
            else:
                self.rows.append(Measured(kernel, case, nbytes, pair))


def run(request: Request) -> Outcome:
    """Measures, predicts and compares."""
    clock = Clock(request)
    steering = Steering(request.path / "nccl.log", {})
    libraries = Libraries.load(request)
    gpu = Gpu(libraries, request.patience)
    try:
        with all_ranks(gpu, MOST_BYTES) as ranks:
            found = _Measuring(gpu, ranks, steering, dry=request.dry)
            found.run(clock)
    except HungError as error:
        raise HungError(
            f"{error}; NCCL's communicators were aborted. Ranks that share a GPU wait "
            "for each other: see that nothing else runs on it"
        ) from error
    cluster = cluster_of(request.gpu)
    if gpu.sm_count != cluster.gpu.sm_count:
        found.findings.append(
            f"The GPU has {gpu.sm_count} SMs, and its record {request.gpu} "
            f"{cluster.gpu.sm_count}; predictions are for the record."
        )
    law = Law(cluster)
    _write_pairs(request.path / _PAIRS, found.rows, law, request.gpu)
    _write_matmuls(request.path / _MATMULS, found.rows, request.gpu)
    outcome = judged(found.rows, law)
    return dataclasses.replace(
        outcome,
        findings=(*found.findings, *outcome.findings),
        left_out=tuple(found.left_out),
        calibrate=(f"--matmuls {_MATMULS}",) if found.rows else (),
        versions=(("NCCL that was measured", libraries.release_name()),),
    )


def judged(rows: Sequence[Measured], law: Law) -> Outcome:
    """The answer that measured pairs give."""
    if not rows:
        return Outcome()
    # Errors in points: parts of the time that the task takes alone.
    kernels = np.array([law.kernel(row) - row.pair.kernel_slowdown for row in rows])
    collectives = np.array(
        [law.collective(row) - row.pair.collective_slowdown for row in rows]
    )
    worst = [rows[number] for number in np.argsort(-np.abs(kernels))]
    return Outcome(
        checks=(
            *_checks("kernels", kernels, _MEDIAN_GOAL, _NINTH_GOAL),
            *_checks("collectives", collectives, None, None),
        ),
        listings=(
            Listing(
                "Kernels slowed by collectives",
                ("kernel", "collective", "slowdown", "predicted"),
                tuple(
                    (
                        row.kernel.name,
                        str(row.collective),
                        row.pair.kernel_slowdown,
                        law.kernel(row),
                    )
                    for row in worst
                ),
            ),
        ),
        findings=tuple(
            f"{row.kernel.name} with {row.collective} takes "
            f"{row.pair.kernel_slowdown:.2f} times as long as alone; the model says "
            f"{law.kernel(row):.2f}."
            for row in worst[:_WORST]
            if abs(law.kernel(row) - row.pair.kernel_slowdown) > _NINTH_GOAL
        ),
    )


def _checks(
    slowed: str, errors: np.ndarray, middle: float | None, ninth: float | None
) -> Iterator[Check]:
    for name, share, goal in (
        ("median", 50, middle),
        ("90th percentile", 90, ninth),
    ):
        value = float(np.percentile(np.abs(errors), share))
        title = f"slowdown of {slowed}, {name} of the error"
        yield Check(title, value, at_most=goal, unit="%")


def _write_pairs(path: Path, rows: Sequence[Measured], law: Law, gpu: str) -> None:
    """Every pair with the model's slowdowns."""
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(
            (
                *("gpu", "kernel", "collective", "algorithm", "protocol", "channels"),
                *("chunk_bytes", "bytes", "ranks", "kernel_alone_us", "kernel_us"),
                *("kernel_slowdown_predicted", "collective_alone_us", "collective_us"),
                "collective_slowdown_predicted",
            )
        )
        for row in rows:
            setting, pair = row.collective.setting, row.pair
            table.writerow(
                (
                    *(gpu, row.kernel.name, row.collective.function),
                    *(setting.algorithm, setting.protocol, setting.channels),
                    *(setting.chunk_bytes, row.nbytes, RANKS),
                    *(_us(pair.kernel_alone), _us(pair.kernel_together)),
                    round(law.kernel(row), 4),
                    *(_us(pair.collective_alone), _us(pair.collective_together)),
                    round(law.collective(row), 4),
                )
            )


def _write_matmuls(path: Path, rows: Sequence[Measured], gpu: str) -> None:
    """The products' times alone, as `lagom calibrate --matmuls` reads them."""
    alone: dict[str, tuple[KernelCase, list[float]]] = {}
    for row in rows:
        if row.kernel.work.matmuls:
            _, times = alone.setdefault(row.kernel.name, (row.kernel, []))
            times += row.pair.kernel_alone
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("gpu", "batch", "m", "n", "k", "types", "microseconds"))
        for kernel, times in alone.values():
            (matmul,) = kernel.work.matmuls
            sides = (matmul.batch, matmul.m, matmul.n, matmul.k)
            table.writerow((gpu, *sides, "bf16xbf16->bf16", _us(times)))


def _us(seconds: Sequence[float]) -> float:
    return round(1e6 * median(seconds), 2)
