"""Stage `schedule`: is the schedule compiled without a GPU the one compiled on it?

Every step is compiled twice: as `lagom_jax` does it, without a GPU, and by jax on this
GPU, which XLA takes for one of eight by mocking the others. Nothing is executed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import jax

from gpu_stages.host import cluster_of
from gpu_stages.mocked import OPTIONS, SMALL, step_of
from gpu_stages.running import how_ended, last_line
from gpu_stages.schedules import Comparison, compare
from gpu_stages.stage import CannotRunError, Check, Clock, Outcome, Request, say
from lagom_jax import processes
from lagom_jax.cluster import Cluster, target_config
from lagom_jax.compile import Target, Toolchain, compile_step, lower
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.replay import replay
from lagom_jax.errors import LagomError, ToolchainError
from lagom_jax.hlo import read_module
from lagom_jax.program.build import build_program
from lagom_jax.program.program import Program
from lagom_jax.units import counted

_GPUS: Final = 8
# One GPU is all that each host has that XLA can mock, all of them in one NVLink domain.
_MOCKED: Final = f"1x{_GPUS}x1"
_STEPS: Final = (
    ("llama-3-8b", "fsdp"),
    ("llama-3-8b", "tp"),
    ("deepseek-moe-16b", "ep"),
    ("phi-2", "dp"),
    ("olmoe-1b-7b", "fsdp"),
    ("llama-3-8b", "pp"),
)
# A test sets options for the mocked side of a dry run, so that there is a difference.
_DRY_OPTIONS: Final = "STANDIN_XLA_OPTIONS"
# To read, compare and report.
_FOR_THE_REST: Final = 15.0
_LISTED_OF_EACH: Final = 4
# One that hangs must not take the time of all.
_LONGEST_SHARE: Final = 0.6
_WITHOUT, _ON = "without a GPU", "on the GPU"


@dataclasses.dataclass(frozen=True, slots=True)
class _Step:
    """A step of the suite."""

    model: str
    sizes: dict[str, Any]

    @property
    def name(self) -> str:
        return " ".join((self.model, self.sizes.get("parallelism", ""))).strip()


@dataclasses.dataclass(frozen=True, slots=True)
class _Compiled:
    """One step in both ways."""

    step: _Step
    without: Program
    on_gpu: Program
    known: dict[str, Any]
    notes: tuple[str, ...]


class _StepFailedError(Exception):
    """One step could not be compiled; its text says why."""


def run(request: Request) -> Outcome:
    """Compares as many steps as there is time for."""
    clock = Clock(request)
    # The GPU is for the processes that mock others: each takes its memory.
    jax.config.update("jax_platforms", "cpu")
    cluster = cluster_of(request.gpu, _GPUS)
    try:
        toolchain = Toolchain.probe().require()
    except ToolchainError as error:
        raise CannotRunError(
            f"nothing can be compiled without a GPU: {error}"
        ) from error
    target = target_config(cluster.gpu, toolchain.version("jaxlib"))
    found: list[_Compiled] = []
    left_out: list[str] = []
    longest = 0.0
    steps = [
        _Step(model, {"parallelism": parallelism, "devices": _GPUS})
        for model, parallelism in _STEPS
    ]
    for step in [_Step(SMALL, {"devices": _GPUS})] if request.dry else steps:
        began = clock.left()
        if began < longest + _FOR_THE_REST:
            left_out.append(f"{step.name}: no time was left")
            continue
        say(f"compiling {step.name} twice")
        try:
            found.append(_compile(step, request, clock, cluster, target))
        except _StepFailedError as error:
            left_out.append(f"{step.name}: {error}")
        longest = max(longest, began - clock.left())
    if not found:
        raise CannotRunError(f"no step was compiled in both ways: {left_out[0]}")
    comparisons = [compare(one.without, one.on_gpu) for one in found]
    model = CostModel.of(cluster)
    return Outcome(
        checks=tuple(
            check
            for one, comparison in zip(found, comparisons, strict=True)
            for check in _checks(one, comparison, model)
        ),
        findings=(
            *_about_the_gpu(found, cluster, dry=request.dry),
            *(
                f"{one.step.name}: {sentence}."
                for one, comparison in zip(found, comparisons, strict=True)
                for sentence in _sentences(one, comparison)
            ),
        ),
        left_out=(
            *left_out,
            f"{_GPUS} GPUs of one host: with one GPU XLA mocks {_MOCKED} only",
        ),
        versions=tuple(toolchain.versions.items()),
    )


def _compile(
    step: _Step, request: Request, clock: Clock, cluster: Cluster, target: str
) -> _Compiled:
    seconds = min(clock.left() - _FOR_THE_REST, _LONGEST_SHARE * request.seconds)
    built = step_of(step.model, step.sizes)
    lowered = lower(built.function, *built.arguments)

    with ThreadPoolExecutor(1) as pool:
        # Meanwhile the GPU's own, which mostly waits for the GPU.
        without = pool.submit(
            compile_step,
            lowered,
            Target(f"{cluster.name} as {_MOCKED}", target, _MOCKED),
            OPTIONS,
            timeout_s=seconds,
        )
        try:
            on_gpu, known = _on_gpu(step, request, seconds, target)
            compiled = without.result()
        except LagomError as error:
            raise _StepFailedError(f"without a GPU: {error}") from error
    program = build_program(read_module(compiled.module_bytes))
    return _Compiled(step, program, on_gpu, known, compiled.notes)


def _on_gpu(
    step: _Step, request: Request, seconds: float, target: str
) -> tuple[Program, dict[str, Any]]:
    """Compiled in a process of its own, which alone has seen the mocked topology."""
    folder = request.path / step.name.replace(" ", "-")
    folder.mkdir()
    asked = {
        "model": step.model,
        "sizes": step.sizes,
        "topology": _MOCKED,
        "target": target if request.dry else "",
        "options": {**OPTIONS, **json.loads(os.environ.get(_DRY_OPTIONS, "{}"))},
    }
    (folder / "asked.json").write_text(json.dumps(asked))
    log = folder / "log.txt"
    with log.open("w") as printed:
        try:
            ended = subprocess.run(
                processes.python("-m", "gpu_stages.mocked", str(folder)),
                env=processes.environment(),
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise _StepFailedError(
                f"compiling it on the GPU was not done after {seconds:.0f} s"
            ) from None
    if ended.returncode:
        how = how_ended(ended.returncode)
        raise _StepFailedError(f"compiling it on the GPU {how}: {last_line(log)}")
    program = build_program(read_module((folder / "module.pb").read_bytes()))
    return program, json.loads((folder / "known.json").read_text())


def _checks(
    one: _Compiled, comparison: Comparison, model: CostModel
) -> Iterator[Check]:
    name = f"{one.step.name}, {counted(comparison.collectives, 'collective')}"
    for title, count, goal in (
        ("in another order", comparison.other_order, 0),
        ("with other matrix products", comparison.other_products, 0),
        # XLA tunes products on the GPU only, so kernels may differ.
        ("with any other kernel", comparison.other_kernels, None),
    ):
        yield Check(f"{name}: {title}", count, at_most=goal)
    first, second = (
        replay(program, model, model.contention()).step_seconds
        for program in (one.without, one.on_gpu)
    )
    yield Check(
        f"{one.step.name}: predicted step of the schedule made {_WITHOUT}, "
        f"{1e3 * first:.2f} ms, over the one predicted for the schedule made {_ON}, "
        f"{1e3 * second:.2f} ms, less one",
        first / second - 1,
        unit="%",
    )


def _sentences(one: _Compiled, comparison: Comparison) -> Iterator[str]:
    for place, some in (
        (_WITHOUT, comparison.only_first),
        (_ON, comparison.only_second),
    ):
        for transfer in some[:_LISTED_OF_EACH]:
            yield f"{place} alone, or at another place: {transfer}"
        if len(some) > _LISTED_OF_EACH:
            more = counted(len(some) - _LISTED_OF_EACH, "other collective")
            yield f"{place} alone, or at another place: {more}"
    yield from one.notes


def _about_the_gpu(
    found: Sequence[_Compiled], cluster: Cluster, *, dry: bool
) -> Iterator[str]:
    """Differences of the record and the GPU that the two sides were compiled for."""
    known, gpu = found[0].known, cluster.gpu
    if dry:
        return
    if known["device"] != gpu.xla_device_name:
        yield (
            f"The GPU is {known['device']}, and the record has {gpu.xla_device_name}: "
            "XLA chooses some tables by this name."
        )
    if known["cores"] not in (None, gpu.sm_count):
        yield f"The GPU has {known['cores']} SMs, and the record {gpu.sm_count}."
