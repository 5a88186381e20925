"""Goes through settings and kernels, as far as the time reaches."""

from __future__ import annotations

import dataclasses
from typing import Final

from gpu_stages import nccl_log
from gpu_stages.beside.asked import KernelAsked, SettingAsked, kernels, settings
from gpu_stages.beside.bench import Bench, NotCoveredError, Task
from gpu_stages.beside.fitting import Measured
from gpu_stages.cuda.binding import CallError
from gpu_stages.cuda.kernels import matmuls, triads
from gpu_stages.cuda.nccl import Ranks
from gpu_stages.cuda.runtime import Gpu, HungError
from gpu_stages.nccl_log import Ran
from gpu_stages.stage import Clock, say
from gpu_stages.steering import RANKS, Steering
from lagom_jax.tuner import Rule, Rules, Scope
from lagom_jax.tuner.rules import MOST_BYTES as LARGEST_SIZE

_SMALL: Final = 1 << 20


@dataclasses.dataclass(slots=True)
class Found:
    """What was measured, and what was not."""

    rows: list[Measured] = dataclasses.field(default_factory=list[Measured])
    findings: list[str] = dataclasses.field(default_factory=list[str])
    left_out: list[str] = dataclasses.field(default_factory=list[str])


class Measuring:
    """All kernels beside one setting after the other."""

    def __init__(self, gpu: Gpu, ranks: Ranks, steering: Steering) -> None:
        self._gpu, self._ranks, self._steering = gpu, ranks, steering
        self._bench = Bench(gpu, ranks)
        self._communicator = steering.communicator()
        stream = gpu.stream(urgent=False)
        product, triad = matmuls(gpu, stream), triads(gpu, stream)
        self._tasks = {
            kernel.name: Task(
                (stream,),
                triad(kernel.elements)
                if kernel.elements
                else product(kernel.work.matmuls[0]),
            )
            for kernel in kernels()
        }
        self._found = Found()

    def run(self, clock: Clock, reserve: float) -> Found:
        """Measures until all is done or the time is over.

        Args:
            clock: What is left of it.
            reserve: Seconds that are needed afterwards.
        """
        asked = settings()
        longest = 0.0
        for number, setting in enumerate(asked):
            before = clock.left()
            if before < reserve + longest:
                rest = ", ".join(str(one) for one in asked[number:])
                self._found.left_out.append(f"The time was over before: {rest}.")
                break
            try:
                self._beside(setting)
            except (CallError, HungError) as error:
                if not self._found.rows:
                    raise
                self._found.findings.append(
                    f"It ended with {setting}: {error}. Nothing was measured after it."
                )
                break
            longest = max(longest, before - clock.left())
            say(f"{number + 1}/{len(asked)}: {setting}")
        return self._found

    def _beside(self, setting: SettingAsked) -> None:
        answer, function = setting.answer, setting.function
        if (function, answer.algorithm, answer.protocol) not in (
            self._communicator.offered
        ):
            self._found.left_out.append(f"NCCL does not offer this here: {setting}.")
            return
        rule = Rule(function, 0, LARGEST_SIZE, answer)
        self._steering.hold(Rules((Scope(RANKS, rules=(rule,)),)))
        ratio = RANKS if function in ("all-gather", "reduce-scatter") else 1
        self._ranks.launch_first(function, _SMALL)
        self._gpu.finish(*self._ranks.streams)
        per_rank = self._bench.size(function, ratio)
        ran = self._ran(function, per_rank)
        if not _as_asked(ran, setting):
            self._found.findings.append(
                f"NCCL was told {setting} for {per_rank} bytes of each rank, and says "
                f"that it does {ran}: nothing was measured beside it."
            )
            return
        collective = self._bench.collective(function, per_rank)
        for kernel in kernels():
            self._pair(kernel, setting, ran, per_rank * ratio, collective)

    def _ran(self, function: str, per_rank: int) -> Ran | None:
        """What NCCL says about one more call of this size."""
        self._steering.log.new_lines()
        self._bench.alone(self._bench.collective(function, per_rank), 1)
        said = nccl_log.ran(self._steering.log.new_lines())
        return said[-1] if said else None

    def _pair(
        self,
        kernel: KernelAsked,
        setting: SettingAsked,
        ran: Ran | None,
        nbytes: int,
        collective: Task,
    ) -> None:
        assert ran is not None
        try:
            pair = self._bench.pair(self._tasks[kernel.name], collective)
        except NotCoveredError as error:
            self._found.left_out.append(f"{kernel.name} beside {setting}: {error}.")
            return
        self._found.rows.append(Measured(kernel, setting, ran.channels, nbytes, pair))


def _as_asked(ran: Ran | None, setting: SettingAsked) -> bool:
    answer = setting.answer
    asked = (setting.function, answer.algorithm, answer.protocol, answer.channels)
    return ran is not None and asked == (
        *(ran.function, ran.algorithm, ran.protocol),
        ran.channels,
    )
