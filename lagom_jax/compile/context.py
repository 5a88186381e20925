"""The context in which a step is traced: a mesh, and a cluster's answers."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding

from lagom_jax.cluster import Cluster
from lagom_jax.compile import _jax_internals
from lagom_jax.compile._internal import internal
from lagom_jax.compile.questions import Questions, questions_asked
from lagom_jax.compile.tracing import first_paragraph, trace


@dataclasses.dataclass(frozen=True, slots=True)
class TracedStep:
    """A traced step, and what it was told while it was traced."""

    stage: Any
    """A `jax.stages.Traced`, or a `Lowered`."""
    notes: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()
    """Reasons why it may be another program than on the cluster."""


def trace_in_context(
    step: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    cluster: Cluster | None,
) -> TracedStep:
    """Traces a step as it would be where it runs.

    The mesh of the arguments is in context where the caller has set none and the step
    needs one, and questions about the machine are answered as on the cluster. Where the
    step cannot be traced so, as where it talks to other processes, one process has the
    whole cluster; and where that does not help, it is traced as it is. Both are said.

    Args:
        step: As `trace` takes it.
        args: The arguments it would be called with.
        kwargs: The same by keyword.
        cluster: The machine it is for, if that is known.

    Raises:
        StepError: As `trace` raises it.

    Example:
        >>> def step(x):
        ...     return x * (2 if jax.default_backend() == "gpu" else 1)
        >>> found = trace_in_context(step, (1.0,), {}, Cluster.parse("h100:1x1"))
        >>> found.stage.jaxpr.eqns[0].primitive.name
        'mul'
        >>> found.notes[0].partition(":")[0], found.cautions
        ('traced as on h100', ())
    """
    mesh = mesh_of((args, kwargs)) if _no_mesh_is_set() else None
    first: Exception | None = None
    for processes in _processes(cluster):
        for way in _ways(mesh):
            try:
                with _context(mesh, way), _told(cluster, processes) as asked:
                    stage = trace(step, args, kwargs)
            except Exception as error:
                # The step's own exception is the one of the way it would run.
                first = first or error
                continue
            return _traced(stage, asked, cluster, processes, first)
    assert first is not None
    raise first


def _processes(cluster: Cluster | None) -> tuple[int | None, ...]:
    """Numbers of processes that may own the cluster, the true one first.

    None is for the answers of this machine.
    """
    if cluster is None:
        return (None,)
    return (*dict.fromkeys((cluster.hosts, 1)), None)


def _ways(mesh: Mesh | AbstractMesh | None) -> tuple[str, ...]:
    """The ways to have a mesh in context, the one that a program expects first.

    `with mesh:` changes no program that does without. `jax.set_mesh` may: it changes
    which constants jax works out while it traces. So it is for programs that need it,
    as all do whose axes are explicit.
    """
    if mesh is None:
        return ("",)
    usual = ("with mesh", "") if isinstance(mesh, Mesh) else ("",)
    if AxisType.Explicit in mesh.axis_types:
        return ("jax.set_mesh", *usual)
    return (usual[0], "jax.set_mesh", *usual[1:])


def _traced(
    stage: Any,
    asked: Questions,
    cluster: Cluster | None,
    processes: int | None,
    failed: Exception | None,
) -> TracedStep:
    if cluster is None:
        return TracedStep(stage)
    cautions = asked.cautions("while it was traced")
    if processes != cluster.hosts and failed is not None:
        cautions = (_departure(cluster, processes, failed), *cautions)
    return TracedStep(stage, asked.notes(cluster.name), cautions)


def _departure(cluster: Cluster, processes: int | None, failed: Exception) -> str:
    """Answers that a step got in the place of the cluster's, and why."""
    why = first_paragraph(failed, 200)
    if processes is None:
        return (
            f"the step cannot be traced as on {cluster.name} ({why}), so it was traced "
            "as on this machine, and may be another program here"
        )
    return (
        f"the step cannot be traced as one of {cluster.hosts} processes ({why}), so it "
        f"was told that one process has all of {cluster.name}"
    )


@contextlib.contextmanager
def _told(cluster: Cluster | None, processes: int | None) -> Iterator[Questions]:
    if cluster is None or processes is None:
        yield Questions()
        return
    with (
        questions_asked(cluster, processes=processes) as asked,
        _jax_internals.cudnn_for(cluster.gpu.compute_capability),
    ):
        yield asked


def mesh_of(arguments: Any) -> Mesh | AbstractMesh | None:
    """The mesh that arguments lie on, if it is one.

    Args:
        arguments: A tree of arrays and of what stands for them.

    Example:
        >>> mesh_of((1.0, 2)) is None
        True
    """
    found: dict[Any, Mesh | AbstractMesh] = {}
    for leaf in jax.tree.leaves(arguments):
        sharding = getattr(leaf, "sharding", None)
        if not isinstance(sharding, NamedSharding) or sharding.mesh.empty:
            continue
        mesh = sharding.mesh
        key = (mesh.axis_names, mesh.axis_sizes, mesh.axis_types)
        # A mesh of devices says more than one without.
        if key not in found or isinstance(mesh, Mesh):
            found[key] = mesh
    return next(iter(found.values())) if len(found) == 1 else None


def _no_mesh_is_set() -> bool:
    if not internal("jax._src.core", "trace_state_clean")():
        return False
    legacy = internal("jax._src.mesh", "thread_resources").env.physical_mesh
    return legacy.empty and jax.sharding.get_abstract_mesh().empty


@contextlib.contextmanager
def _context(mesh: Mesh | AbstractMesh | None, way: str) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if isinstance(mesh, Mesh) and way:
            if way == "jax.set_mesh":
                stack.enter_context(jax.set_mesh(mesh))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                stack.enter_context(mesh)
        elif isinstance(mesh, AbstractMesh) and way:
            stack.enter_context(jax.sharding.use_abstract_mesh(mesh))
        yield
