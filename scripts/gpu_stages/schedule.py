"""Stage `schedule`: whether the schedule made without a GPU is the one made on it.

Every step is compiled twice: as `lagom_jax` does it, without a GPU, and by jax on this
GPU, which XLA takes for one of eight by mocking the others. Nothing is executed.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

import jax

from gpu_stages import makers
from gpu_stages.clusters import cluster_of
from gpu_stages.logs import last_words
from gpu_stages.mocked import OPTIONS
from gpu_stages.schedules import Comparison, What, compare
from gpu_stages.stage import CannotRunError, Clock, Outcome, Request, Score, say
from lagom_jax import processes
from lagom_jax.cluster import Cluster, target_config, topology
from lagom_jax.compile import Target, Toolchain, compile_step, lower
from lagom_jax.compile.child import signal_name
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.replay import replay
from lagom_jax.errors import LagomError, ToolchainError
from lagom_jax.hlo import read_module
from lagom_jax.schedule.build import build_program
from lagom_jax.schedule.program import Program
from lagom_jax.units import counted
from lagom_models import build

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
# On the mocked side of a dry run, so that there is something to find.
_DRY_OPTIONS: Final = {"xla_gpu_enable_triton_gemm": False}
# To read, to compare and to say what was found.
_FOR_THE_REST: Final = 15.0
_SAID_OF_EACH: Final = 4
# One that hangs must not take the time of all.
_LONGEST_SHARE: Final = 0.6
_WITHOUT, _ON = "without a GPU", "on the GPU"


@dataclasses.dataclass(frozen=True, slots=True)
class _Step:
    """What is compiled."""

    model: str
    sizes: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.model} {self.sizes['parallelism']}"


@dataclasses.dataclass(frozen=True, slots=True)
class _Compiled:
    """One step on both ways, and without a GPU for eight GPUs of one host too."""

    step: _Step
    without: Program
    on_one_host: Program
    on_gpu: Program
    known: dict[str, Any]
    notes: tuple[str, ...]


class _StepFailedError(Exception):
    """One step could not be compiled; its text says why."""


def run(request: Request) -> Outcome:
    """Compares as many steps as there is time for."""
    clock = Clock.of(request)
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
    for step in _steps(dry=request.dry):
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
        raise CannotRunError(f"no step was compiled on both ways: {left_out[0]}")
    comparisons = [compare(one.without, one.on_gpu) for one in found]
    model = CostModel.of(cluster)
    return Outcome(
        scores=[
            score
            for one, comparison in zip(found, comparisons, strict=True)
            for score in _scores(one, comparison, model)
        ],
        findings=[
            *_about_the_gpu(found, cluster, dry=request.dry),
            *(
                f"{one.step.name}: {sentence}."
                for one, comparison in zip(found, comparisons, strict=True)
                for sentence in _sentences(one, comparison)
            ),
        ],
        left_out=[*left_out, *_left_out(cluster)],
        versions=toolchain.versions,
    )


def _steps(*, dry: bool) -> Iterator[_Step]:
    if dry:
        sizes = {"tiny": True, "sequence": 64, "layers": 2, "remat": False}
        yield _Step("mpt-7b", {"parallelism": "tp", "devices": _GPUS, **sizes})
        return
    for model, parallelism in _STEPS:
        yield _Step(model, {"parallelism": parallelism, "devices": _GPUS})


def _compile(
    step: _Step, request: Request, clock: Clock, cluster: Cluster, target: str
) -> _Compiled:
    seconds = min(clock.left() - _FOR_THE_REST, _LONGEST_SHARE * request.seconds)
    built = build(step.model, **step.sizes)
    lowered = lower(built.function, *built.arguments)

    def without(places: str) -> tuple[Program, tuple[str, ...]]:
        compiled = compile_step(
            lowered,
            Target(f"{cluster.name} as {places}", target, places),
            OPTIONS,
            timeout_s=seconds,
        )
        return build_program(read_module(compiled.module_bytes)), compiled.notes

    with ThreadPoolExecutor(1) as pool:
        # Beside the GPU's own, which mostly waits for the GPU.
        waiting: list[Future[tuple[Program, tuple[str, ...]]]] = [
            pool.submit(without, places) for places in (_MOCKED, topology(cluster))
        ]
        try:
            on_gpu, known = _on_gpu(step, request, seconds, target)
            (first, notes), (one_host, _) = (one.result() for one in waiting)
        except LagomError as error:
            raise _StepFailedError(f"without a GPU: {error}") from error
    return _Compiled(step, first, one_host, on_gpu, known, notes)


def _on_gpu(
    step: _Step, request: Request, seconds: float, target: str
) -> tuple[Program, dict[str, Any]]:
    """Compiled in a process of its own, which alone has seen the mocked topology."""
    folder = request.folder / step.name.replace(" ", "-")
    folder.mkdir()
    asked = {
        "model": step.model,
        "sizes": step.sizes,
        "topology": _MOCKED,
        "target": target if request.dry else "",
        "options": {**OPTIONS, **(_DRY_OPTIONS if request.dry else {})},
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
        how = "failed"
        if ended.returncode < 0:
            how = f"was ended by {signal_name(ended.returncode)}"
        raise _StepFailedError(f"compiling it on the GPU {how}: {last_words(log)}")
    program = build_program(read_module((folder / "module.pb").read_bytes()))
    return program, json.loads((folder / "known.json").read_text())


def _scores(
    one: _Compiled, comparison: Comparison, model: CostModel
) -> Iterator[Score]:
    name = f"{one.step.name}, {counted(comparison.collectives, 'collective')}"
    for what, count in (
        ("in the same order", comparison.in_order),
        ("beside the same matrix products", comparison.same_products),
        ("beside all the same kernels", comparison.same_kernels),
    ):
        yield Score(f"{name}: {what}", comparison.share(count), least=1.0, unit="%")
    host = compare(one.without, one.on_one_host)
    yield Score(
        f"{name}: in the same order for {_GPUS} GPUs of one host, both {_WITHOUT}",
        host.share(host.in_order),
        least=1.0,
        unit="%",
    )
    first, second = (
        _predicted(program, model) for program in (one.without, one.on_gpu)
    )
    yield Score(
        f"{one.step.name}: predicted step of the schedule made {_WITHOUT}, "
        f"{1e3 * first:.2f} ms, over the one predicted for the schedule made {_ON}, "
        f"{1e3 * second:.2f} ms, less one",
        first / second - 1,
        unit="%",
    )


def _predicted(program: Program, model: CostModel) -> float:
    return replay(program, model, model.contention()).step_seconds


def _sentences(one: _Compiled, comparison: Comparison) -> Iterator[str]:
    weights = {what: number for number, what in enumerate(What)}
    found = sorted(comparison.differences, key=lambda one: weights[one.what])
    for difference in found[:_SAID_OF_EACH]:
        yield difference.words(_WITHOUT, _ON)
    more = Counter(one.what.value for one in found[_SAID_OF_EACH:])
    if more:
        listed = ", ".join(f"{count} {what}" for what, count in more.most_common())
        yield f"{counted(more.total(), 'more difference')}: {listed}"
    yield from makers.sentences(one.without, one.on_gpu)
    yield from one.notes


def _about_the_gpu(
    found: Sequence[_Compiled], cluster: Cluster, *, dry: bool
) -> Iterator[str]:
    """Where the record and the GPU differ that both sides were compiled for."""
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


def _left_out(cluster: Cluster) -> Iterator[str]:
    yield (
        f"{_GPUS} GPUs of one host ({topology(cluster)} in XLA's words) on the GPU's "
        f"side: with one GPU XLA mocks {_MOCKED} only"
    )
