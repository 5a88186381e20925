"""Reading a JAX profile: what `jax.profiler.trace` writes during training."""

from __future__ import annotations

import dataclasses
import gzip
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lagom_jax.errors import MeasurementError
from lagom_jax.measurements.executions import (
    Event,
    Measured,
    count_steps,
    main_module,
    measure,
)

_ENDINGS = (".xplane.pb", ".xplane.pb.gz")
_HOW = "record one with jax.profiler.trace(FOLDER) around some steps"


@dataclasses.dataclass(frozen=True, slots=True)
class MeasuredStep:
    """Measurements of one program, from a profile.

    Example:
        >>> step = summarise([Event("gpu0", "s", 0, 1e-3, "loop_fusion", "fusion.1")])
        >>> step.devices, step.steps, step.instructions["fusion.1"].median
        (1, 1, 0.001)
    """

    module: str
    """The program; the one that took most time, if the profile has several."""
    other_modules: tuple[str, ...]
    devices: int
    """Devices that the profile has events of."""
    steps: int
    """Executions of the program per device."""
    instructions: Mapping[str, Measured]
    """By name, without `%`."""
    nameless: Mapping[str, Measured]
    """Kernels for which the profile names no instruction, by the kernel's name."""
    nameless_share: float
    """The part of the kernels' time that is theirs."""
    origin: str = ""
    """The file or folder it was read from."""


def read_profile(path: str | Path, *, module: str = "") -> MeasuredStep:
    """Reads a profile.

    Args:
        path: The folder given to `jax.profiler.trace` (its newest recording counts,
            with the files of all hosts), or one `.xplane.pb`, which may be gzipped.
        module: The program to look at, such as `jit_step`; by default the one that
            took most of the devices' time.

    Raises:
        MeasurementError: There is no profile, or it names no instruction.

    Example:
        >>> read_profile("no_such_folder")
        Traceback (most recent call last):
        ...
        lagom_jax.errors.MeasurementError: there is no no_such_folder; ...
    """
    step = summarise(read_events(path), module=module)
    return dataclasses.replace(step, origin=str(path))


def read_events(path: str | Path) -> list[Event]:
    """Events of the devices, kernel by kernel.

    Args:
        path: As for `read_profile`.

    Raises:
        MeasurementError: There is no profile, or it names no instruction.
    """
    events = [
        event
        for number, file in enumerate(profile_files(Path(path)))
        for event in _read_file(file, number)
    ]
    if not any(event.op for event in events):
        raise MeasurementError(
            f"{path} has no event that names an HLO instruction; {_HOW}, after a first "
            "step that compiles, and with work on the devices inside"
        )
    return events


def summarise(events: Iterable[Event], *, module: str = "") -> MeasuredStep:
    """Summarises the events of one program.

    Args:
        events: Of any number of devices and steps.
        module: The program to look at; by default the one that took most time.

    Raises:
        MeasurementError: No event is from that program.
    """
    events = list(events)
    modules = sorted({event.module for event in events if event.op})
    wanted = module or main_module(events)
    if module and module not in modules:
        raise MeasurementError(
            f"the profile has no module '{module}'; it has {', '.join(modules)}"
        )
    named = [event for event in events if event.op and event.module == wanted]
    nameless = [event for event in events if not event.op]
    steps = count_steps(named)
    lost = sum(event.seconds for event in nameless)
    return MeasuredStep(
        module=wanted,
        other_modules=tuple(name for name in modules if name != wanted),
        devices=len({event.device for event in named}),
        steps=steps,
        instructions=measure(named, steps),
        nameless=measure(nameless, steps),
        nameless_share=lost / (lost + sum(e.seconds for e in named)) if lost else 0.0,
    )


def profile_files(path: Path) -> list[Path]:
    """The files of the newest recording in a folder, or the one file that is named.

    Raises:
        MeasurementError: There is none.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise MeasurementError(f"there is no {path}; {_HOW}")
    found = [p for p in sorted(path.rglob("*")) if p.name.endswith(_ENDINGS)]
    if not found:
        raise MeasurementError(f"{path} holds no *.xplane.pb; {_HOW}")
    # Recordings are folders named after the time they began.
    newest = max((file.parent for file in found), key=lambda p: (p.name, p))
    return [file for file in found if file.parent == newest]


def _read_file(file: Path, number: int) -> list[Event]:
    try:
        content = file.read_bytes()
        if file.suffix == ".gz":
            content = gzip.decompress(content)
        data = _parse(content)
    except (OSError, EOFError, zlib.error, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise MeasurementError(
            f"{file} cannot be read as a profile ({reason}); name a folder that "
            "jax.profiler.trace wrote, or an .xplane.pb of it"
        ) from None
    with warnings.catch_warnings():
        # The reader's native types lack an attribute that Python 3.12 warns about;
        # where warnings are errors, native code aborts the process over it.
        warnings.simplefilter("ignore", DeprecationWarning)
        planes = list(data.planes)
        on_gpus = [e for p in planes for e in _gpu_events(p, number)]
        return on_gpus or [e for p in planes for e in _cpu_events(p, number)]


def _parse(content: bytes) -> Any:
    # Here and not above, so that importing lagom_jax does not import jax.
    from lagom_jax.compile import chatter

    with chatter.withheld():
        import jax.profiler as profiler
    reader: Any = profiler
    return reader.ProfileData.from_serialized_xspace(content)


def _gpu_events(plane: Any, host: int) -> Iterator[Event]:
    """The kernels of one GPU: each line is a stream.

    Tools add lines that repeat the same events, sorted by other views.
    """
    if not str(plane.name).startswith("/device:GPU:"):
        return
    device = f"{host}{plane.name}"
    lines = list(plane.lines)
    streams = [line for line in lines if str(line.name).startswith("Stream")]
    for line in streams or [line for line in lines if line.name == "XLA Ops"]:
        for event in line.events:
            yield _event(event, device, line.name, dict(event.stats))


def _cpu_events(plane: Any, host: int) -> Iterator[Event]:
    """Events of XLA's CPU backend, picked from the threads that ran it."""
    if not str(plane.name).startswith("/host:"):
        return
    for line in plane.lines:
        for event in line.events:
            stats = dict(event.stats)
            if stats.get("hlo_op"):
                device = f"{host}/cpu:{stats.get('device_ordinal', 0)}"
                yield _event(event, device, line.name, stats)


def _event(event: Any, device: str, stream: str, stats: Mapping[str, object]) -> Event:
    return Event(
        device=device,
        stream=str(stream),
        start=float(event.start_ns),
        seconds=float(event.duration_ns) * 1e-9,
        kernel=str(event.name),
        op=str(stats.get("hlo_op") or "").removeprefix("%"),
        module=str(stats.get("hlo_module") or ""),
        run=str(stats.get("run_id") or ""),
    )
