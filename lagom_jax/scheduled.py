"""A training step as XLA scheduled it: compiled just now, or read from a dump."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lagom_jax.cluster import Cluster
from lagom_jax.errors import ClusterError, HloError, PlanError
from lagom_jax.hlo import Module, read_bytes, read_module
from lagom_jax.plan import Plan, load
from lagom_jax.plan.check import require
from lagom_jax.plan.order import APPLIED
from lagom_jax.plan.pinned import stated, unheeded
from xla_flags import pinned_here

if TYPE_CHECKING:
    from lagom_jax.compile import CompiledStep, Compiler, LoweredStep

# Lines of XLA's log: level, time, process and place; and those that go on with a list.
_LOG_PREFIX = re.compile(r"^[IWEF]\d{4} [\d:.]+ +\d+ [\w./]+:\d+\] ")
_LISTED = re.compile(r"  ")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Scheduled:
    """A scheduled module, and what is known of where it came from."""

    module: Module
    cluster: Cluster
    name: str = ""
    description: str = ""
    """What it is, in a line."""
    peak_memory_bytes: int | None = None
    """Device memory at the fullest moment; None where only a dump is known."""
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    """Of the compiler that made it, where known."""
    notes: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    """Lines of lists that the compiler logged, in another order every time."""
    plan: Plan | None = None
    """What it was compiled with, and what NCCL is told for it."""


def compile_scheduled(
    step: Callable[..., Any],
    *args: Any,
    cluster: str | Cluster,
    compiler_options: Mapping[str, Any] | None = None,
    name: str = "",
    description: str = "",
    plan: Plan | str | Path | None = None,
    compiler: Compiler | None = None,
    **kwargs: Any,
) -> Scheduled:
    """Compiles a training step for a cluster.

    Args:
        step: As `lagom_jax.analyze` takes it.
        *args: Its arguments, likewise.
        cluster: What to compile for.
        compiler_options: XLA options, as `lowered.compile` takes them.
        name: What to call the step; by default its own name.
        description: What it is, in a line.
        plan: Compiles it as a plan says; a record or its file.
        compiler: Whose processes and store to use; by default a new process, and the
            usual store of compiled steps.
        **kwargs: Its keyword arguments.

    Raises:
        ClusterError: No such cluster.
        ToolchainError: XLA's GPU compiler is not installed as it must be.
        CompileError: The compiler refused the step.
        StepError: The step cannot be traced, or is for another number of devices than
            the cluster has, or an option is unknown.
        PlanError: The plan was made for something else.
    """
    # Here and not above, so that importing lagom_jax does not import jax.
    from lagom_jax.compile import compile_step, lower

    where = cluster_named(cluster)
    if isinstance(plan, str | Path):
        plan = load(plan)
    lowered = lower(step, *args, **kwargs)
    title, notes = name or lowered.name, lowered.notes
    if plan is None:
        compiled = compile_step(lowered, where, compiler_options, compiler=compiler)
        return scheduled_of(compiled, where, title, description, notes)
    given = dict(compiler_options or {})
    doubts = _doubts(plan, lowered, where, given)
    options = {**plan.compiler_options(), **given}
    compiled = compile_step(
        lowered, where, options, order=plan.order, compiler=compiler
    )
    if plan.order is not None and compiled.order_outcome != APPLIED:
        raise PlanError(
            "the plan's order of instructions was not taken, and its settings are for "
            f"that order: {compiled.order_outcome}; make the plan again here"
        )
    scheduled = scheduled_of(compiled, where, title, description, (*notes, *doubts))
    return dataclasses.replace(scheduled, plan=plan)


def _doubts(
    plan: Plan, lowered: LoweredStep, cluster: Cluster, given: Mapping[str, Any]
) -> list[str]:
    """What may make a plan's figures wrong here.

    Raises:
        PlanError: The plan is for something else.
    """
    from lagom_jax.compile import Toolchain

    options = {**given, **lowered.compiler_options}
    doubts = require(
        plan,
        fingerprint=lowered.fingerprint,
        cluster=cluster,
        versions=Toolchain.probe().versions,
        pinned=stated(pinned_here(options)),
        with_options=True,
    )
    return [f"the plan: {doubt}" for doubt in doubts]


def scheduled_of(
    compiled: CompiledStep,
    cluster: Cluster,
    name: str = "",
    description: str = "",
    notes: Iterable[str] = (),
) -> Scheduled:
    """What the compiler made, as the analysis takes it.

    Args:
        compiled: The compiled step.
        cluster: What it was compiled for.
        name: What to call it; by default its own name.
        description: What it is, in a line.
        notes: What is already known about it.
    """
    lines = [_LOG_PREFIX.sub("", line) for line in compiled.warnings]
    return Scheduled(
        read_module(compiled.module_bytes),
        cluster,
        name or compiled.name,
        description,
        compiled.memory.peak_bytes,
        compiled.versions,
        (
            *notes,
            *compiled.notes,
            *unheeded(pinned_here()),
            *(f"XLA: {line}" for line in lines if not _LISTED.match(line)),
        ),
        tuple(f"XLA: {line}" for line in lines if _LISTED.match(line)),
    )


def read_scheduled(path: str | Path, cluster: str | Cluster) -> Scheduled:
    """Reads a dump of a program for a cluster.

    Args:
        path: As `lagom_jax.analyze_dump` takes it.
        cluster: What the program runs on.

    Raises:
        ClusterError: No such cluster.
        HloError: The file is not there, not HLO, not scheduled, or for another number
            of devices than the cluster has.
    """
    where = cluster_named(cluster)
    found = read_bytes(path)
    module = read_module(found.module)
    if module.devices != where.devices:
        raise HloError(
            f"{found.path} is a program for {module.devices} device(s), but "
            f"{where.name} has {where.devices}; name the cluster that it was "
            f"compiled for, with {module.devices} device(s) in all"
        )
    repairs = tuple(f"mended to be read: {repair}" for repair in found.repairs)
    return Scheduled(module, where, notes=repairs)


def cluster_named(named: object) -> Cluster:
    """A cluster, by its name or as it is.

    Raises:
        ClusterError: It is neither.
    """
    if isinstance(named, Cluster):
        return named
    if isinstance(named, str):
        return Cluster.parse(named)
    raise ClusterError(
        f"cluster={named!r} is {type(named).__name__}; give a name such as "
        '"h100:8x8", or a lagom_jax.Cluster'
    )
