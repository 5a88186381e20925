"""From a training step, or a dump of one, to its overlap report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lagom_jax.cluster import Cluster
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.settings_of_plan import missing_sites, settings_of
from lagom_jax.measure import Calibration, MeasuredStep, refine
from lagom_jax.plan import Plan
from lagom_jax.report import Report, report_program
from lagom_jax.schedule.build import build_program
from lagom_jax.scheduled import Scheduled, compile_scheduled, read_scheduled
from lagom_jax.units import counted

if TYPE_CHECKING:
    from lagom_jax.compile import Compiler


def analyze(
    step: Callable[..., Any],
    *args: Any,
    cluster: str | Cluster,
    compiler_options: Mapping[str, Any] | None = None,
    name: str = "",
    description: str = "",
    calibration: Calibration | str | Path | None = None,
    profile: MeasuredStep | str | Path | None = None,
    plan: Plan | str | Path | None = None,
    compiler: Compiler | None = None,
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
        plan: Compiles the step as a plan says, and takes NCCL to be told what the plan
            says: what `make_plan` returned, or the path of it.
        compiler: Whose processes and store to use; by default a new process, and the
            usual store of compiled steps.
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
        PlanError: The plan was made for something else.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> x = jax.ShapeDtypeStruct((256, 256), "bfloat16")
        >>> report = analyze(lambda x: jnp.tanh(x @ x), x, cluster="h100:1x1")
        >>> report.exposed_seconds
        0.0
    """
    scheduled = compile_scheduled(
        step,
        *args,
        cluster=cluster,
        compiler_options=compiler_options,
        name=name,
        description=description,
        plan=plan,
        compiler=compiler,
        **kwargs,
    )
    return report_scheduled(scheduled, calibration=calibration, profile=profile)


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
    return report_scheduled(
        read_scheduled(path, cluster), calibration=calibration, profile=profile
    )


def report_scheduled(
    scheduled: Scheduled,
    *,
    calibration: Calibration | str | Path | None = None,
    profile: MeasuredStep | str | Path | None = None,
) -> Report:
    """Reports the overlaps of a step that was scheduled.

    Args:
        scheduled: The step.
        calibration: As `analyze` takes it.
        profile: Of a run of it, as `analyze` takes it.
    """
    cluster = scheduled.cluster
    model = CostModel.of(cluster)
    program = build_program(scheduled.module)
    notes = [*scheduled.notes, *scheduled.lists]
    if scheduled.plan is not None:
        model = model.under(
            settings_of(scheduled.plan, program, cluster, model.constants.nccl)
        )
        if lacking := missing_sites(scheduled.plan, program):
            notes.append(
                f"the plan has settings for {counted(len(lacking), 'collective')} that "
                f"this program lacks, such as {lacking[0]}"
            )
    refined = refine(
        program,
        cluster,
        model,
        model.source,
        model=model.digest,
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
        measured=refined.measured,
        name=scheduled.name,
        description=scheduled.description,
        peak_memory_bytes=scheduled.peak_memory_bytes,
        versions=scheduled.versions,
        notes=(*notes, *refined.notes),
    )
