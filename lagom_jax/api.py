"""From a training step, or a dump of one, to its report and to settings of NCCL."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from lagom_jax.cluster import Cluster
from lagom_jax.cost.ensemble import Ensemble
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.prices import Prices
from lagom_jax.cost.settings_of_plan import missing_sites, settings_of
from lagom_jax.dumped import step_in
from lagom_jax.hlo.files import read_program
from lagom_jax.hlo.stated_kernels import StatedKernel, kernels_of
from lagom_jax.measurements import Calibration, MeasuredStep, members_of, refine
from lagom_jax.plan import Plan
from lagom_jax.program.build import build_program
from lagom_jax.report import Report, report_program
from lagom_jax.report.sources import figure_sources
from lagom_jax.scheduled import Scheduled, compile_scheduled, read_scheduled
from lagom_jax.settings.controls import FINE, Controls, Grid, named
from lagom_jax.settings.doubt import EnsembleMember, step_intervals
from lagom_jax.settings.policy import Policy
from lagom_jax.settings.tuning import (
    POLICIES,
    PolicyError,
    Tuning,
    policy_named,
    tune_program,
)
from lagom_jax.units import counted

if TYPE_CHECKING:
    from lagom_jax.compile import Compiler, LoweredStep


def analyze(
    step: Callable[..., Any] | LoweredStep,
    *args: Any,
    cluster: str | Cluster,
    compiler_options: Mapping[str, Any] | None = None,
    name: str = "",
    description: str = "",
    calibration: Calibration | str | Path | None = None,
    profile: MeasuredStep | str | Path | None = None,
    kernels: str | Path | Sequence[StatedKernel] = (),
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
        kernels: The time or the work of kernels that nothing else is known of, or the
            file with them, see `lagom_jax.hlo.stated_kernels`.
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
    ).stating(kernels_of(kernels))
    return report_scheduled(scheduled, calibration=calibration, profile=profile)


def analyze_dump(
    path: str | Path,
    cluster: str | Cluster,
    *,
    calibration: Calibration | str | Path | None = None,
    profile: MeasuredStep | str | Path | None = None,
    kernels: str | Path | Sequence[StatedKernel] = (),
) -> Report:
    """Reports the overlaps of a program that was written to a file.

    Args:
        path: A `*after_optimizations.txt`, the text of `compiled.as_text()`, a
            `.hlo.pb`, a folder that `--xla_dump_to` filled, or `-` for standard input.
            A `*before_optimizations.txt`, StableHLO and what `jax.export` wrote are
            compiled for the cluster first.
        cluster: What the program runs on.
        calibration: As `analyze` takes it.
        profile: Of a run of the program, as `analyze` takes it.
        kernels: As `analyze` takes them.

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
    scheduled = _scheduled_in(path, cluster).stating(kernels_of(kernels))
    return report_scheduled(scheduled, calibration=calibration, profile=profile)


def _scheduled_in(path: str | Path, cluster: str | Cluster) -> Scheduled:
    """The program of a file, compiled first where the file is of before that."""
    found = read_program(path)
    step = step_in(found)
    if step is None:
        return read_scheduled(found, cluster)
    return compile_scheduled(step, cluster=cluster, name=step.name)


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
    if isinstance(calibration, str | Path):
        calibration = Calibration.load(calibration)
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
    intervals = None
    if profile is None:
        members = members_of(Ensemble.around(model), calibration)
        likeliest = EnsembleMember(model, _correction(model, calibration))
        intervals = step_intervals(program, likeliest, members)
    return report_program(
        program,
        cluster,
        refined.prices,
        # Times of a profile have what the tasks did to each other in them already.
        None if profile is not None else model.contention(),
        pricing=refined.source,
        measured=refined.measured,
        intervals=intervals,
        name=scheduled.name,
        description=scheduled.description,
        peak_memory_bytes=scheduled.peak_memory_bytes,
        versions=scheduled.versions,
        notes=(*notes, *refined.notes),
        cautions=scheduled.cautions,
        loads=model,
        sources=figure_sources(
            program,
            cluster,
            model.constants,
            profiled=profile is not None,
            calibrated=calibration is not None,
            compiled=scheduled.peak_memory_bytes is not None,
        ),
    )


def _correction(
    model: CostModel, calibration: Calibration | None
) -> Callable[[Prices], Prices]:
    """The correction of the model's prices, under any settings."""
    if calibration is None:
        return lambda prices: prices
    correction = calibration.apply(model, model.cluster, model.digest)
    # The curves are the same for all settings.
    return lambda prices: replace(correction, base=prices)


def find_settings(
    step: Callable[..., Any],
    *args: Any,
    cluster: str | Cluster,
    policies: Sequence[str] = ("lagom",),
    controls: str | Controls = "tuner",
    compiler_options: Mapping[str, Any] | None = None,
    calibration: Calibration | str | Path | None = None,
    kernels: str | Path | Sequence[StatedKernel] = (),
    compiler: Compiler | None = None,
    **kwargs: Any,
) -> Tuning:
    """Compiles a training step and finds the settings that make it shortest.

    Nothing is executed, and nothing is set: the answer is a record.

    Args:
        step: The training step, as `analyze` takes it.
        *args: Its arguments, likewise.
        cluster: The cluster, such as `"h100:8x8"`.
        policies: How to choose: `nccl`, `autoccl`, `lagom`, `exhaustive`. The first
            decides, the others are compared with it.
        controls: The means to set NCCL where the step runs: `caps`, `tuner`,
            `sequence`, `fork`.
        compiler_options: XLA options, as `lowered.compile` takes them.
        calibration: Corrections to the model from your own measurements.
        kernels: As `analyze` takes them.
        compiler: Whose processes and store to use, as `analyze` takes it.
        **kwargs: The step's keyword arguments.

    Raises:
        PolicyError: No such policy, or none at all.
        ControlsError: No such controls.
        TooManyError: `exhaustive` was asked of a program with too many combinations.
        LagomError: As `analyze` raises it.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> x = jax.ShapeDtypeStruct((256, 256), "bfloat16")
        >>> find_settings(lambda x: jnp.tanh(x @ x), x, cluster="h100:1x1").speedup
        1.0
    """
    # What was asked is checked before the compiler is set to work.
    asked, stated = _asked(policies, controls, calibration), kernels_of(kernels)
    scheduled = compile_scheduled(
        step,
        *args,
        cluster=cluster,
        compiler_options=compiler_options,
        compiler=compiler,
        **kwargs,
    )
    return tune_scheduled(scheduled.stating(stated), **asked)


def find_settings_of_dump(
    path: str | Path,
    cluster: str | Cluster,
    *,
    policies: Sequence[str] = ("lagom",),
    controls: str | Controls = "tuner",
    calibration: Calibration | str | Path | None = None,
    kernels: str | Path | Sequence[StatedKernel] = (),
) -> Tuning:
    """Finds the settings that make a dumped program shortest.

    Args:
        path: As `analyze_dump` takes it.
        cluster: What the program runs on.
        policies: As `find_settings` takes them.
        controls: As `find_settings` takes them.
        calibration: As `find_settings` takes it.
        kernels: As `analyze` takes them.

    Raises:
        LagomError: As `find_settings` and `analyze_dump` raise it.

    Example:
        >>> find_settings_of_dump("no_such_dump.txt", "h100:1x8")
        Traceback (most recent call last):
        ...
        lagom_jax.errors.HloError: ...no_such_dump.txt...
    """
    asked, stated = _asked(policies, controls, calibration), kernels_of(kernels)
    return tune_scheduled(_scheduled_in(path, cluster).stating(stated), **asked)


class _Asked(TypedDict):
    policies: Sequence[Policy]
    controls: Controls
    calibration: Calibration | None


def _asked(
    policies: Sequence[str],
    controls: str | Controls,
    calibration: Calibration | str | Path | None,
) -> _Asked:
    # A string is a sequence of strings, too.
    names = [policies] if isinstance(policies, str) else policies
    if not names:
        raise PolicyError(f"no policy is named; known are {', '.join(POLICIES)}")
    if isinstance(calibration, str | Path):
        calibration = Calibration.load(calibration)
    return {
        "policies": [policy_named(name) for name in names],
        "controls": named(controls) if isinstance(controls, str) else controls,
        "calibration": calibration,
    }


def tune_scheduled(
    scheduled: Scheduled,
    *,
    policies: Sequence[Policy],
    controls: Controls,
    grid: Grid = FINE,
    calibration: Calibration | None = None,
) -> Tuning:
    """Finds the settings that make a scheduled step shortest.

    Args:
        scheduled: The step.
        policies: How to choose; the first decides.
        controls: The parts of a setting that can be set.
        grid: Which values are tried.
        calibration: Corrections to the model.
    """
    cluster = scheduled.cluster
    model = CostModel.of(cluster)
    program = build_program(scheduled.module)
    refined = refine(
        program,
        cluster,
        model,
        model.source,
        model=model.digest,
        calibration=calibration,
    )

    return tune_program(
        program,
        cluster,
        model,
        controls=controls,
        policies=policies,
        grid=grid,
        correct=_correction(model, calibration),
        members=members_of(Ensemble.around(model), calibration),
        pricing=refined.source,
        name=scheduled.name,
        description=scheduled.description,
        versions=tuple(sorted(scheduled.versions.items())),
        notes=(
            *scheduled.cautions,
            *scheduled.notes,
            *scheduled.lists,
            *refined.notes,
        ),
    )
