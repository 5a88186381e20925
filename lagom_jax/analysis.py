"""From a training step, or a dump of one, to its overlap report."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from lagom_jax.cluster import Cluster
from lagom_jax.cost.model import CostModel
from lagom_jax.errors import ClusterError, HloError
from lagom_jax.hlo import Module, read_bytes, read_module
from lagom_jax.measure import Calibration, MeasuredStep, refine
from lagom_jax.report import Report, report_program
from lagom_jax.schedule.build import build_program

_LOG_PREFIX = re.compile(r"^[IWEF]\d{4} [\d:.]+ +\d+ [\w./]+:\d+\] ")


def analyze(
    step: Callable[..., Any],
    *args: Any,
    cluster: str | Cluster,
    compiler_options: Mapping[str, Any] | None = None,
    name: str = "",
    description: str = "",
    calibration: Calibration | str | Path | None = None,
    profile: MeasuredStep | str | Path | None = None,
    **kwargs: Any,
) -> Report:
    """Compiles a training step for a cluster and reports what its overlaps cost.

    Nothing is executed and nothing is allocated: the step is traced with the shapes and
    shardings of its arguments and compiled by XLA's GPU compiler, which needs no GPU.

    Args:
        step: The training step, a function or a jitted function.
        *args: Its arguments: arrays, or `jax.ShapeDtypeStruct`s whose shardings lie on
            a mesh with as many devices as the cluster. The mesh may be abstract.
        cluster: The cluster, such as `"h100:8x8"`: 8 hosts of 8 H100s.
        compiler_options: XLA options, as `lowered.compile` takes them.
        name: What to call the step in the report; by default its own name.
        description: What it is, in a line for the report.
        calibration: Corrections to the model from your own measurements: what
            `lagom calibrate` wrote, or the path of it.
        profile: A profile of a run of this very program, or the path of one; its times
            go before the model's.
        **kwargs: Its keyword arguments.

    Returns:
        The report; `print` shows it as a table.

    Raises:
        ClusterError: No such cluster.
        ToolchainError: XLA's GPU compiler is not installed as it must be.
        CompileError: The compiler refused the step.
        StepError: The step cannot be traced, or is for another number of devices than
            the cluster has, or an option is unknown.
        MeasurementError: The calibration or the profile cannot be used.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> x = jax.ShapeDtypeStruct((256, 256), "bfloat16")
        >>> report = analyze(lambda x: jnp.tanh(x @ x), x, cluster="h100:1x1")
        >>> report.exposed_seconds
        0.0
    """
    # Here and not above, so that importing lagom_jax does not import jax.
    from lagom_jax.compile import compile_step, lower

    where = _cluster(cluster)
    lowered = lower(step, *args, **kwargs)
    compiled = compile_step(lowered, where, compiler_options)
    return analyze_module(
        read_module(compiled.module_bytes),
        where,
        name=name or lowered.name,
        description=description,
        peak_memory_bytes=compiled.memory.peak_bytes,
        versions=compiled.versions,
        notes=(*lowered.notes, *map(_without_prefix, compiled.warnings)),
        calibration=calibration,
        profile=profile,
    )


def _without_prefix(line: str) -> str:
    """A line of XLA's log without its level, time, process and place."""
    return f"XLA: {_LOG_PREFIX.sub('', line)}"


def analyze_dump(
    path: str | Path,
    cluster: str | Cluster,
    *,
    calibration: Calibration | str | Path | None = None,
    profile: MeasuredStep | str | Path | None = None,
) -> Report:
    """Reports the overlaps of a program that XLA dumped.

    Args:
        path: A `*after_optimizations.txt`, the text of `compiled.as_text()`, a
            `.hlo.pb`, a folder that `--xla_dump_to` filled, or `-` for standard input.
        cluster: What the program runs on.
        calibration: As `analyze` takes it.
        profile: Of a run of the program, as `analyze` takes it.

    Raises:
        HloError: The file is not there, not HLO, not scheduled, or for another number
            of devices than the cluster has.
        MeasurementError: The calibration or the profile cannot be used.

    Example:
        >>> analyze_dump("no_such_dump.txt", "h100:1x8")
        Traceback (most recent call last):
        ...
        lagom_jax.errors.HloError: ...no_such_dump.txt...
    """
    where = _cluster(cluster)
    module, repairs = read_dump(path, where)
    return analyze_module(
        module, where, notes=repairs, calibration=calibration, profile=profile
    )


def read_dump(path: str | Path, cluster: Cluster) -> tuple[Module, tuple[str, ...]]:
    """Reads a dump of a program for a cluster.

    Args:
        path: As `analyze_dump` takes it.
        cluster: What the program runs on.

    Returns:
        The module, and how the dump had to be mended to be read.

    Raises:
        HloError: As `analyze_dump` raises it.
    """
    found = read_bytes(path)
    module = read_module(found.module)
    if module.devices != cluster.devices:
        raise HloError(
            f"{found.path} is a program for {module.devices} device(s), but "
            f"{cluster.name} has {cluster.devices}; name the cluster that it was "
            f"compiled for, with {module.devices} device(s) in all"
        )
    return module, tuple(f"mended to be read: {repair}" for repair in found.repairs)


def _cluster(named: object) -> Cluster:
    if isinstance(named, Cluster):
        return named
    if isinstance(named, str):
        return Cluster.parse(named)
    raise ClusterError(
        f"cluster={named!r} is {type(named).__name__}; give a name such as "
        '"h100:8x8", or a lagom_jax.Cluster'
    )


def analyze_module(
    module: Module,
    cluster: Cluster,
    *,
    name: str = "",
    description: str = "",
    peak_memory_bytes: int | None = None,
    versions: Mapping[str, str] | None = None,
    notes: Iterable[str] = (),
    calibration: Calibration | str | Path | None = None,
    profile: MeasuredStep | str | Path | None = None,
) -> Report:
    """Reports the overlaps of a module that has been read.

    Args:
        module: A scheduled module.
        cluster: What it runs on.
        name: What to call it in the report.
        description: What it is, in a line.
        peak_memory_bytes: Device memory at the fullest moment, where known.
        versions: Of the compiler that made it, where known.
        notes: What else the reader must know.
        calibration: As `analyze` takes it.
        profile: Of a run of the module, as `analyze` takes it.
    """
    model = CostModel.of(cluster)
    program = build_program(module)
    refined = refine(
        program,
        cluster,
        model,
        model.source,
        calibration=calibration,
        profile=profile,
    )
    return report_program(
        program,
        cluster,
        refined.prices,
        # Times of a profile have what the tasks did to each other in them already.
        None if profile is not None else model.contention(),
        pricing=refined.source,
        name=name,
        description=description,
        peak_memory_bytes=peak_memory_bytes,
        versions=versions,
        notes=(*notes, *refined.notes),
    )
