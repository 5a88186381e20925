"""A real training step of one device: what it took, its program, and its profile."""

from __future__ import annotations

import dataclasses
import time
import warnings
from pathlib import Path
from typing import Any

import jax

import lagom_models
from gpu_stages.profiling import recorded
from gpu_stages.stage import Spread
from lagom_jax.measure.xplane import profile_files

_WARM_UP, _TURNS, _STEPS, _PROFILED = 3, 7, 5, 5


@dataclasses.dataclass(frozen=True, slots=True)
class Subject:
    """A training step of one device.

    Example:
        >>> Subject("phi-2", {"layers": 4, "batch": 2}).name
        'phi-2, layers 4, batch 2'
    """

    model: str
    size: dict[str, Any]
    """As `lagom_models.build` takes it."""

    @property
    def name(self) -> str:
        """For people."""
        sizes = [f"{what} {value}" for what, value in self.size.items() if value > 1]
        return ", ".join((self.model, *sizes))


@dataclasses.dataclass(frozen=True, slots=True)
class Recording:
    """What was recorded of a step."""

    name: str
    milliseconds: Spread
    """Of a step among several that follow each other, without the profiler."""
    program: Path
    """The text of the program that ran."""
    trace: Path
    """What `jax.profiler.trace` wrote."""


def record(subject: Subject, folder: Path, options: dict[str, Any]) -> Recording:
    """Runs a step on the device that there is.

    Args:
        subject: The step.
        folder: Where program and profile go.
        options: XLA's, to compile it with.
    """
    step = lagom_models.build(subject.model, devices=1, **subject.size)
    mesh = jax.make_mesh((1,), step.mesh.axis_names, axis_types=step.mesh.axis_types)
    state, tokens = step.initialise(mesh)
    compiled = step.function.lower(state, tokens).compile(compiler_options=options)
    folder.mkdir()
    program = folder / "program.txt"
    program.write_text(compiled.as_text())

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
    with recorded(folder / "trace"):
        run(_PROFILED, state)
    return Recording(subject.name, Spread.of(times), program, folder / "trace")


def contents(trace: Path) -> str:
    """What is in a profile, for the case that it cannot be used: line by line."""
    found: list[str] = []
    with warnings.catch_warnings():
        # The reader's native types lack an attribute that Python 3.12 warns about.
        warnings.simplefilter("ignore", DeprecationWarning)
        for file in profile_files(trace):
            data: Any = jax.profiler.ProfileData.from_file(str(file))
            for plane in data.planes:
                for line in plane.lines:
                    events = list(line.events)
                    if not events:
                        continue
                    middle = events[len(events) // 2]
                    stats = ", ".join(f"{name}={value}" for name, value in middle.stats)
                    found.append(
                        f"{plane.name} / {line.name}: {len(events)} events, such as "
                        f"{middle.name} ({stats})"
                    )
    return "\n".join(found)
