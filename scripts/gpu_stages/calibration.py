"""Stage `calibration`: does one real step bring steps nearer that it has not seen?

A training step of one device runs and is profiled; `lagom calibrate` reads the profile;
then the step is predicted, and others, with the calibration and without.
"""

from __future__ import annotations

import dataclasses
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import jax

import lagom_jax
import lagom_models
from gpu_stages.clusters import cluster_of
from gpu_stages.running import last_line
from gpu_stages.stage import (
    CannotRunError,
    Check,
    Clock,
    Outcome,
    Request,
    Row,
    Spread,
    Table,
    say,
)
from lagom_jax import processes

# Below that much time no other step is begun: what it takes to compile one.
_LEAST_SECONDS: Final = 60.0
_WARM_UP, _TURNS, _STEPS, _PROFILED = 3, 7, 5, 5
# In a CUDA graph kernels may name no instruction in a profile.
_WITHOUT_GRAPHS: Final = {"xla_gpu_enable_command_buffer": ""}
_CALIBRATION: Final = "calibration.json"


@dataclasses.dataclass(frozen=True, slots=True)
class Subject:
    """A training step of one device.

    Example:
        >>> Subject("phi-2", {"layers": 4, "batch": 2}).name
        'phi-2-layers-4-batch-2'
    """

    model: str
    size: dict[str, Any]
    """As `lagom_models.build` takes it."""

    @property
    def name(self) -> str:
        """Also the name of its folder."""
        sizes = [f"{what}-{value}" for what, value in self.size.items() if value > 1]
        return "-".join((self.model, *sizes))


@dataclasses.dataclass(frozen=True, slots=True)
class Compared:
    """A step: measured, predicted, and predicted with the calibration."""

    name: str
    milliseconds: Spread
    predicted: float
    calibrated: float


def run(request: Request) -> Outcome:
    """Records, calibrates, and predicts."""
    clock = Clock.of(request)
    first, *others = _subjects(dry=request.dry)
    measured = [(first, _record(first, request.folder))]
    calibration = _calibrate(first, request)
    left_out: list[str] = []
    for other in others:
        if clock.left() < _LEAST_SECONDS:
            left_out.append(f"{other.name}: {clock.left():.0f} s were left.")
            continue
        try:
            measured.append((other, _record(other, request.folder)))
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            left_out.append(
                f"{other.name}: the GPU's memory does not suffice for it; end what "
                "else uses the GPU, see nvidia-smi."
            )
    cluster = cluster_of(request.gpu).name

    def predicted(subject: Subject, used: Path | None) -> float:
        program = request.folder / subject.name / "program.txt"
        report = lagom_jax.analyze_dump(program, cluster=cluster, calibration=used)
        return 1e3 * report.step_seconds

    steps = [
        Compared(
            subject.name,
            milliseconds,
            predicted(subject, None),
            predicted(subject, calibration),
        )
        for subject, milliseconds in measured
    ]
    table = Table(
        "--profile",
        f"{first.name}/trace",
        ("--dump", f"calibration/{first.name}/program.txt"),
    )
    return dataclasses.replace(judged(*steps), left_out=left_out, tables=[table])


def judged(seen: Compared, *unseen: Compared) -> Outcome:
    """The answer that steps give.

    Args:
        seen: The step that was calibrated with.
        *unseen: Others.
    """
    rows = [
        Row(
            "steps",
            one.name,
            one.milliseconds,
            "ms",
            one.predicted,
            one is not seen,
            {"calibrated, ms": round(one.calibrated, 3)},
        )
        for one in (seen, *unseen)
    ]
    return Outcome(checks=list(_checks(seen, unseen)), rows=rows)


def _checks(seen: Compared, unseen: Sequence[Compared]) -> Iterator[Check]:
    for one in (seen, *unseen):
        before, after = (
            abs(value / one.milliseconds.median - 1)
            for value in (one.predicted, one.calibrated)
        )
        part = "seen" if one is seen else "not seen"
        yield Check(f"{one.name}, {part}: error of the model", before, unit="%")
        # A calibration with a step says nothing about that step.
        goal = None if one is seen else before
        yield Check(f"{one.name}, {part}: calibrated", after, at_most=goal, unit="%")


def _subjects(*, dry: bool) -> tuple[Subject, ...]:
    """Steps of one device: the one to calibrate with, then others that differ from it.

    Args:
        dry: Sizes for a CPU instead of a GPU.
    """
    if dry:
        tiny = {"tiny": True, "layers": 1, "sequence": 16}
        return tuple(Subject("phi-2", {**tiny, "batch": batch}) for batch in (2, 4))
    return (
        Subject("llama-3-8b", {"layers": 2, "batch": 1, "sequence": 2048}),
        Subject("llama-3-8b", {"layers": 2, "batch": 2, "sequence": 2048}),
        Subject("phi-2", {"layers": 6, "batch": 2, "sequence": 2048}),
        Subject("llama-3-8b", {"layers": 4, "batch": 1, "sequence": 2048}),
    )


def _record(subject: Subject, folder: Path) -> Spread:
    """Runs a step on the device that there is; writes its program and profile.

    Returns:
        Milliseconds of a step, without the profiler.
    """
    say(f"{subject.name} ...")
    step = lagom_models.build(subject.model, devices=1, **subject.size)
    mesh = jax.make_mesh((1,), step.mesh.axis_names, axis_types=step.mesh.axis_types)
    state, tokens = step.initialise(mesh)
    lowered = step.function.lower(state, tokens)
    compiled = lowered.compile(compiler_options=_WITHOUT_GRAPHS)
    place = folder / subject.name
    place.mkdir()
    (place / "program.txt").write_text(compiled.as_text())

    def run(steps: int, state: Any) -> tuple[float, Any]:
        begun = time.perf_counter()
        for _ in range(steps):
            state, _ = compiled(state, tokens)
        jax.block_until_ready(state)
        return 1e3 * (time.perf_counter() - begun) / steps, state

    _, state = run(_WARM_UP, state)
    times: list[float] = []
    for _ in range(_TURNS):
        milliseconds, state = run(_STEPS, state)
        times.append(milliseconds)
    options = jax.profiler.ProfileOptions()
    # Of Python nothing is asked, and it would be the most of the profile.
    options.python_tracer_level = 0
    with jax.profiler.trace(str(place / "trace"), profiler_options=options):
        run(_PROFILED, state)
    return Spread.of(times)


def _calibrate(subject: Subject, request: Request) -> Path:
    """The calibration that `lagom calibrate` makes of a recorded step.

    Raises:
        CannotRunError: It cannot read the profile.
    """
    place = request.folder / subject.name
    output = request.folder / _CALIBRATION
    log = request.folder / "calibrate.txt"
    with log.open("w") as words:
        done = subprocess.run(
            processes.python(
                *("-m", "lagom_jax", "calibrate"),
                *("--cluster", cluster_of(request.gpu).name, "--output", str(output)),
                *("--profile", str(place / "trace")),
                *("--dump", str(place / "program.txt")),
            ),
            env=processes.environment(JAX_PLATFORMS="cpu"),
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode:
        raise CannotRunError(
            f"`lagom calibrate` does not read the profile: {last_line(log)} (without "
            "planes of a GPU in it, CUPTI is missing: install the nvidia-cuda-cupti of "
            "jax's CUDA)"
        )
    return output
