"""Stage `contention`: do NCCL and kernels slow each other as the model says?

Two ranks of one communicator share the GPU, steered by the tuner plugin, so that one
set of communicators serves all settings. docs/how-to/gpu-check.md has the method.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, Final

import numpy as np

from gpu_stages import steering as nccl
from gpu_stages.contention_law import (
    CollectiveCase,
    Law,
    Measured,
    Slowed,
    collective_cases,
    kernel_cases,
)
from gpu_stages.gpu import RANKS, Gpu, HungError, Ranks
from gpu_stages.stage import Check, Outcome, Request, say, write_table
from gpu_stages.steering import Steering
from lagom_jax.nccl_plugin import Rule
from lagom_jax.nccl_plugin.rules import MOST_BYTES as LARGEST_SIZE

_TURNS, _DRY_TURNS = 7, 3
# Every so many settings in a dry run.
_DRY_STEP: Final = 6
# For writing it all down.
_SECONDS_AFTER: Final = 5.0
# In points: hundredths of the time that a kernel takes alone.
_MEDIAN_GOAL, _NINTH_GOAL = 5.0, 10.0
_WORST: Final = 3
_MOST_BYTES: Final = 512 << 20
# Long enough that starts, ends and the grain of events do not count.
_KERNEL_SECONDS: Final = 2e-3
_COLLECTIVE_SECONDS: Final = 1.5e-3
_COLLECTIVES: Final = 2
_FIRST_BYTES: Final = 32 << 20
_GRAIN_BYTES: Final = 1 << 20
# The other one's expected time over its time alone, to begin with.
_EXPECTED_SLOWDOWN: Final = 1.5
_MOST_LAUNCHES: Final = 400


class NotCoveredError(Exception):
    """One ended too early while the other was timed, however often it was repeated."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Task:
    """Something that can be launched again and again."""

    streams: tuple[Any, ...]
    launch: Callable[[], None]

    def times(self, count: int) -> None:
        """Launches it so often."""
        for _ in range(count):
            self.launch()


class _Bench:
    """Measures pairs on one GPU."""

    def __init__(self, gpu: Gpu, ranks: Ranks, turns: int) -> None:
        self._gpu = gpu
        self._ranks = ranks
        self._turns = turns

    def alone(self, task: _Task, count: int) -> float:
        """Seconds of a launch, of so many in a row."""
        start, end = self._timed(task, count)
        self._gpu.finish(*task.streams)
        return self._gpu.seconds(start, end) / count

    def usual_seconds(self, task: _Task) -> float:
        """Approximate seconds of a launch, once everything is warm."""
        once = self.alone(task, 2)
        return self.alone(task, max(2, math.ceil(_KERNEL_SECONDS / once)))

    def size(self, function: str) -> int:
        """Bytes with which a collective takes long enough, as a tuner counts them."""
        seconds = self.usual_seconds(self.collective(function, _FIRST_BYTES))
        grains = round(_FIRST_BYTES * _COLLECTIVE_SECONDS / seconds / _GRAIN_BYTES)
        return min(max(1, grains) * _GRAIN_BYTES, _MOST_BYTES)

    def collective(self, function: str, nbytes: int) -> _Task:
        """A collective of all ranks."""
        return _Task(self._ranks.streams, lambda: self._ranks.launch(function, nbytes))

    def pair(self, kernel: _Task, collective: _Task) -> tuple[Slowed, Slowed]:
        """The two, alone and together, in turns.

        Turns let what changes slowly, such as the clock, meet all alike.

        Raises:
            NotCoveredError: One of them cannot be kept running while the other does.
        """
        of_kernel, of_both = self.usual_seconds(kernel), self.usual_seconds(collective)
        kernels = max(2, math.ceil(_KERNEL_SECONDS / of_kernel))
        over_kernels = of_kernel * kernels / of_both
        over_both = of_both * _COLLECTIVES / of_kernel
        turns = [
            (
                self.alone(kernel, kernels),
                self._together(kernel, kernels, collective, over_kernels),
                self.alone(collective, _COLLECTIVES),
                self._together(collective, _COLLECTIVES, kernel, over_both),
            )
            for _ in range(self._turns)
        ]
        self._ranks.check()
        first, second, third, fourth = zip(*turns, strict=True)
        return Slowed(first, second), Slowed(third, fourth)

    def _together(self, task: _Task, count: int, other: _Task, ratio: float) -> float:
        """Seconds of a launch while the other runs from before it to after it.

        Args:
            task: Timed.
            count: Its launches.
            other: Not timed.
            ratio: Time of all of them over that of one launch of the other, alone.
        """
        launches = math.ceil(_EXPECTED_SLOWDOWN * ratio) + 3
        while launches <= _MOST_LAUNCHES:
            seconds = self._covered(task, count, other, launches)
            if seconds is not None:
                return seconds
            launches *= 2
        raise NotCoveredError(f"{launches // 2} launches of one ended before the other")

    def _covered(
        self, task: _Task, count: int, other: _Task, launches: int
    ) -> float | None:
        """Seconds of a launch; None where the other was done before."""
        gpu = self._gpu
        other.launch()
        begun = gpu.record(other.streams[0])
        other.times(launches)
        over = gpu.record(other.streams[0])
        for stream in task.streams:
            stream.wait_event(begun)
        start, end = self._timed(task, count)
        early = over.done
        gpu.finish(*task.streams, *other.streams)
        return None if early else gpu.seconds(start, end) / count

    def _timed(self, task: _Task, count: int) -> tuple[Any, Any]:
        """Events around so many launches, which are done."""
        # While the first runs, which is not timed, the others are queued.
        task.times(1)
        start = self._gpu.record(task.streams[0])
        task.times(count)
        end = self._gpu.record(task.streams[0])
        self._gpu.wait(end)
        return start, end


class _Measuring:
    """Goes through settings and kernels, as far as the time reaches."""

    def __init__(
        self, gpu: Gpu, ranks: Ranks, steering: Steering, *, dry: bool
    ) -> None:
        self._ranks, self._steering = ranks, steering
        self._bench = _Bench(gpu, ranks, _DRY_TURNS if dry else _TURNS)
        self._collectives = collective_cases()[:: _DRY_STEP if dry else 1]
        self._offered = steering.offer().offered
        stream = gpu.stream(urgent=False)
        self._kernels = [
            (case, _Task((stream,), case.launcher(gpu, stream)))
            for case in kernel_cases()
        ]
        self.rows: list[Measured] = []
        self.findings: list[str] = []
        self.left_out: list[str] = []

    def run(self, request: Request) -> None:
        """Measures until all is done or the time is over."""
        longest = 0.0
        for number, case in enumerate(self._collectives):
            before = request.left()
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
            longest = max(longest, before - request.left())
            say(f"{number + 1}/{len(self._collectives)}: {case}")

    def _with(self, case: CollectiveCase) -> None:
        """All kernels with one collective."""
        answer, function = case.answer, case.function
        if (function, answer.algorithm, answer.protocol) not in self._offered:
            self.left_out.append(f"NCCL does not offer this here: {case}.")
            return
        self._steering.hold(Rule(function, 0, LARGEST_SIZE, answer))
        self._ranks.run(function, _GRAIN_BYTES)
        nbytes = self._bench.size(function)
        task = self._bench.collective(function, nbytes)
        self._steering.new_lines()
        self._bench.alone(task, 1)
        ran = nccl.ran(self._steering.new_lines())
        asked = (function, answer.algorithm, answer.protocol, answer.channels)
        if not ran or ran[-1].setting != asked:
            self.findings.append(
                f"NCCL was asked for {case} of {nbytes} bytes, and logs "
                f"{ran[-1] if ran else None}: nothing was measured with it."
            )
            return
        for kernel, kernel_task in self._kernels:
            try:
                pair = self._bench.pair(kernel_task, task)
            except NotCoveredError as error:
                self.left_out.append(f"{kernel.name} with {case}: {error}.")
            else:
                self.rows.append(Measured(kernel, case, nbytes, *pair))


def run(request: Request) -> Outcome:
    """Measures, predicts and compares."""
    steering = Steering(request)
    gpu = Gpu(request)
    try:
        with Ranks(gpu, _MOST_BYTES) as ranks:
            found = _Measuring(gpu, ranks, steering, dry=request.dry)
            found.run(request)
    except HungError as error:
        raise HungError(
            f"{error}; NCCL's communicators were aborted. Ranks that share a GPU wait "
            "for each other: see that nothing else runs on it"
        ) from error
    cluster = request.cluster()
    name, count = cluster.gpu.name, cluster.gpu.sm_count
    if gpu.sm_count != count:
        found.findings.append(
            f"The GPU has {gpu.sm_count} SMs, and its record {name} {count}; "
            "predictions are for the record."
        )
    law = Law(cluster)
    pairs = [_cells(row, law, name) for row in found.rows]
    write_table(request.path / "pairs.csv", pairs)
    # A row for each product: more would be more evidence than there is.
    products = {pair["kernel"]: pair for pair in pairs if pair["k"]}
    write_table(request.path / "matmuls.csv", [*products.values()])
    outcome = judged(found.rows, law)
    options = f"--cluster {cluster.name} --matmuls matmuls.csv --output my.json"
    return dataclasses.replace(
        outcome,
        findings=(*found.findings, *outcome.findings),
        left_out=tuple(found.left_out),
        calibrate=(f"`lagom calibrate {options}`",) * bool(found.rows),
    )


def judged(rows: Sequence[Measured], law: Law) -> Outcome:
    """The answer that measured pairs give."""
    if not rows:
        return Outcome()
    errors = [100 * abs(law.kernel(row) - row.of_kernel.slowdown) for row in rows]
    slower = [
        100 * abs(law.collective(row) - row.of_collective.slowdown) for row in rows
    ]
    worst = sorted(zip(errors, rows, strict=True), key=lambda one: -one[0])
    return Outcome(
        checks=tuple(
            Check(
                f"slowdown of {what} of the error, in points",
                float(np.percentile(some, share)),
                goal,
            )
            for what, some, share, goal in (
                ("kernels, median", errors, 50, _MEDIAN_GOAL),
                ("kernels, 90th percentile", errors, 90, _NINTH_GOAL),
                ("collectives, median", slower, 50, None),
                ("collectives, 90th percentile", slower, 90, None),
            )
        ),
        findings=tuple(
            f"{row.kernel.name} with {row.collective} takes "
            f"{row.of_kernel.slowdown:.2f} times as long as alone; the model says "
            f"{law.kernel(row):.2f}."
            for error, row in worst[:_WORST]
            if error > _NINTH_GOAL
        ),
    )


def _cells(row: Measured, law: Law, gpu: str) -> dict[str, object]:
    """A pair with the model's slowdown, as a row of a table.

    A product has the columns, too, that `lagom calibrate --matmuls` reads.
    """
    (product,) = row.kernel.work.matmuls or (None,)
    return {
        "gpu": gpu,
        "kernel": row.kernel.name,
        **{side: getattr(product, side, "") for side in ("batch", "m", "n", "k")},
        "types": f"{product.lhs}x{product.rhs}->{product.out}" if product else "",
        "microseconds": _us(row.of_kernel.alone),
        "collective": row.collective.function,
        **dataclasses.asdict(row.collective.setting),
        "bytes": row.nbytes,
        "ranks": RANKS,
        "microseconds_together": _us(row.of_kernel.together),
        "kernel_slowdown_predicted": round(law.kernel(row), 4),
        "collective_alone_us": _us(row.of_collective.alone),
        "collective_us": _us(row.of_collective.together),
        "collective_slowdown_predicted": round(law.collective(row), 4),
    }


def _us(seconds: Sequence[float]) -> float:
    return round(1e6 * median(seconds), 2)
