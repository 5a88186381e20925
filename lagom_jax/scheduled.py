"""A training step as XLA scheduled it: compiled just now, or read from a dump."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lagom_jax.cluster import Cluster
from lagom_jax.errors import ClusterTypeError, HloError, PlanError
from lagom_jax.hlo import Module, read_bytes, read_module
from lagom_jax.hlo.files import HloBytes
from lagom_jax.hlo.stated_kernels import StatedKernel
from lagom_jax.hlo.symmetric_memory import uses_symmetric_memory
from lagom_jax.plan import Plan, load
from lagom_jax.plan.check import require
from lagom_jax.plan.order import APPLIED
from lagom_jax.plan.pinned import stated, unheeded
from lagom_jax.units import counted
from xla_flags import pinned_here

if TYPE_CHECKING:
    from lagom_jax.compile import CompiledStep, Compiler, LoweredStep

# Lines of XLA's log: level, time, process and place; and those that go on with a list.
_LOG_PREFIX = re.compile(r"^[IWEF]\d{4} [\d:.]+ +\d+ [\w./]+:\d+\] ")
# Lines of the log that say nothing: empty ones, rows of stars, slow compiles, which
# say something about the machine that compiles, and about costs that it was handed.
_BANNER = re.compile(
    r"[\s*=#-]*|\*+.*\*+|.*(?:[Ss]low compile|slow_operation_alarm).*"
    r"|The operation took .*|Compil(?:ing|ation) .*\btook\b.*"
    r"|(?:Found|Missing) \d+ instructions? from the profile\."
)
_LISTED = re.compile(r"  ")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Scheduled:
    """A scheduled module, and what is known of where it came from."""

    module: Module
    cluster: Cluster
    name: str = ""
    description: str = ""
    """A description in a line."""
    peak_memory_bytes: int | None = None
    """Device memory at the fullest moment; None where only a dump is known."""
    symmetric_bytes: int = 0
    """Symmetric memory outside of the ordinary pool, at most."""
    kept_bytes: int | None = None
    """Arguments and results, donated ones once; None where only a dump is known."""
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    """Of the compiler that made it, where known."""
    notes: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()
    """Reasons why it may be another program than the one that runs on the cluster."""
    lists: tuple[str, ...] = ()
    """Lines of lists that the compiler logged, in another order every time."""
    plan: Plan | None = None
    """The plan that it was compiled with, and NCCL's settings for it."""

    def stating(self, kernels: Sequence[StatedKernel]) -> Scheduled:
        """The same step with statements about kernels that nothing else is known of.

        Args:
            kernels: The statements; the first that fits a call holds.
        """
        module = dataclasses.replace(self.module, stated=tuple(kernels))
        return dataclasses.replace(self, module=module)


def compile_scheduled(
    step: Callable[..., Any] | LoweredStep,
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
    from lagom_jax.compile import compile_step, lower, traced_for

    where = cluster_named(cluster)
    if isinstance(plan, str | Path):
        plan = load(plan)
    with traced_for(where):
        lowered = lower(step, *args, **kwargs)
    title, notes = name or lowered.name, lowered.notes
    if plan is None:
        compiled = compile_step(lowered, where, compiler_options, compiler=compiler)
        scheduled = scheduled_of(compiled, where, title, description, notes)
        return dataclasses.replace(scheduled, cautions=lowered.cautions)
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
    return dataclasses.replace(scheduled, plan=plan, cautions=lowered.cautions)


def _doubts(
    plan: Plan, lowered: LoweredStep, cluster: Cluster, given: Mapping[str, Any]
) -> list[str]:
    """Reasons why a plan's figures may be wrong here.

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
    """A compiled step, in the form that the analysis takes.

    Args:
        compiled: The compiled step.
        cluster: What it was compiled for.
        name: What to call it; by default its own name.
        description: What it is, in a line.
        notes: What is already known about it.
    """
    found = (_LOG_PREFIX.sub("", line) for line in compiled.warnings)
    lines = [line for line in found if not _BANNER.fullmatch(line)]
    module = read_module(compiled.module_bytes)
    peak, symmetric = compiled.memory.peak_bytes, 0
    if peak is not None and uses_symmetric_memory(module):
        # XLA's own peak leaves out what lies in collective memory.
        symmetric = max(0, compiled.memory.most_bytes - peak)
        peak += symmetric
    return Scheduled(
        module,
        cluster,
        name or compiled.name,
        description,
        peak,
        symmetric,
        compiled.memory.kept_bytes,
        compiled.versions,
        (
            *notes,
            *compiled.notes,
            *unheeded(pinned_here()),
            *(f"XLA: {line}" for line in lines if not _LISTED.match(line)),
        ),
        tuple(f"XLA: {line}" for line in lines if _LISTED.match(line)),
    )


def read_scheduled(path: str | Path | HloBytes, cluster: str | Cluster) -> Scheduled:
    """Reads a dump of a program for a cluster.

    Args:
        path: As `lagom_jax.analyze_dump` takes it, or what was read of it.
        cluster: What the program runs on.

    Raises:
        ClusterError: No such cluster.
        HloError: The file is not there, not HLO, not scheduled, or for another number
            of devices than the cluster has.
    """
    where = cluster_named(cluster)
    found = path if isinstance(path, HloBytes) else read_bytes(path)
    module = read_module(found.module)
    if module.devices != where.devices:
        devices = counted(module.devices, "device")
        raise HloError(
            f"{found.path} is a program for {devices}, but {where.name} has "
            f"{where.devices}; name the cluster that it was compiled for, with "
            f"{devices} in all"
        )
    repairs = tuple(f"mended to be read: {repair}" for repair in found.repairs)
    return Scheduled(module, where, notes=repairs)


def cluster_named(named: object) -> Cluster:
    """A cluster, by its name or as it is.

    Raises:
        ClusterError: No such cluster.
        ClusterTypeError: It is neither.
    """
    if isinstance(named, Cluster):
        return named
    if isinstance(named, str):
        return Cluster.parse(named)
    raise ClusterTypeError(
        f"cluster={named!r} is {type(named).__name__}; give a name such as "
        '"h100:8x8", or a lagom_jax.Cluster'
    )
