"""Verification: the best meshes compiled, replayed with plans, and ranked anew."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from lagom_jax.cluster import Cluster
from lagom_jax.cost.model import CostModel
from lagom_jax.mesh.candidates import Asks
from lagom_jax.mesh.choosing import MeshAdvice
from lagom_jax.mesh.estimate import kernel_bound
from lagom_jax.mesh.mesh_prices import MeshPrices
from lagom_jax.mesh.model_shape import MeshError
from lagom_jax.mesh.sizes import AXES, MeshSizes, StepBatch
from lagom_jax.planner import Budget, Request, SizedPlan, SizedWorkload, plan_workload
from lagom_jax.scheduled import cluster_named

if TYPE_CHECKING:
    from lagom_jax.compile import Compiler

Factory: TypeAlias = Callable[..., Any]
"""Takes sizes of a mesh by the names of `MeshSizes`, as many of them as it names, and
returns a step and a tuple of its arguments."""
ONE_COMPILE: Final = Budget(compiles=1, memory_fraction=Asks().memory_fraction)
"""One compile for each mesh, and the memory that `choose` allows."""
LEAST_KERNELS: Final = 0.93
"""Share of the closed form's kernels and bubbles that a compiled step takes at least.

Kernels are listed as most programs have them. Of 1,485 meshes that were compiled they
alone were longer than the replayed step in one, by 6 %.
"""
_GIVEN: Final = (*AXES, "micro_batch", "remat", "tensor_sequence", "interleave")


def made_step(
    factory: Factory, sizes: MeshSizes, batch: StepBatch | None = None
) -> tuple[Any, tuple[Any, ...]]:
    """The step and arguments that a factory makes for a mesh.

    Args:
        factory: As `Factory` says; `batch` goes to a parameter of that name.
        sizes: The mesh.
        batch: What a step is trained on.

    Raises:
        MeshError: It cannot express these sizes, or returns something else.

    Example:
        >>> made_step(lambda data, tensor: (max, (data, tensor)), MeshSizes(tensor=2))
        (<built-in function max>, (1, 2))
    """
    parameters = inspect.signature(factory).parameters
    # `**sizes` takes any names, and is none itself.
    variable = inspect.Parameter.VAR_KEYWORD
    named = {name for name, p in parameters.items() if p.kind is not variable}
    some = len(named) < len(parameters)
    given = {name: getattr(sizes, name) for name in _GIVEN if some or name in named}
    if "batch" in named:
        given["batch"] = batch
    if "sizes" in named:
        given = {"sizes": sizes, **({"batch": batch} if "batch" in named else {})}
    else:
        missing = [a for a in AXES if sizes.of(a) > 1 and a not in given]
        if missing:
            raise MeshError(f"the factory takes no {', '.join(missing)}")
    made: object = factory(**given)
    if hasattr(made, "function") and hasattr(made, "arguments"):
        whole = cast("Any", made)
        return whole.function, tuple(whole.arguments)
    pair = cast("tuple[Any, ...]", made) if isinstance(made, tuple) else ()
    if len(pair) != 2 or not callable(pair[0]):
        kind = type(cast("Any", made)).__name__
        raise MeshError(
            f"the factory returned {kind}; it must return a pair: the step and a tuple "
            "of its arguments"
        )
    return pair[0], tuple(pair[1])


def verified(
    advice: MeshAdvice,
    factory: Factory,
    best: int,
    *,
    budget: Budget = ONE_COMPILE,
    compiler: Compiler | None = None,
    progress: Callable[[str], None] = lambda words: None,
) -> MeshAdvice:
    """Compiles the best meshes of an advice and orders them by their replayed steps.

    Args:
        advice: What `choose` returned.
        factory: Makes the step of a mesh.
        best: How many to compile.
        budget: For the plan of each.
        compiler: Whose processes and store to use.
        progress: Called with a line for each mesh.

    Returns:
        The advice with the compiled meshes first, fastest first; those that were
        refused keep the reason and come last of them.
    """
    chosen = {choice.sizes: choice for choice in advice.choices[:best]}
    workload = _workload(factory, advice.cluster, advice.batch)
    # None is left out: the prediction said already that they are near one another.
    found = plan_workload(
        workload,
        chosen,
        Request(budget=budget, progress=progress),
        prune=False,
        compiler=compiler,
    )
    done = [
        dataclasses.replace(
            chosen[one.sizes],
            verified_step_seconds=one.step_seconds,
            verified_memory_bytes=one.peak_bytes,
            refused=one.refused,
        )
        for one in found
    ]
    return dataclasses.replace(advice, choices=(*done, *advice.choices[best:]))


def choose_by_compiling(
    factory: Factory,
    meshes: Iterable[MeshSizes],
    *,
    cluster: str | Cluster,
    advice: MeshAdvice | None = None,
    budget: Budget = ONE_COMPILE,
    compiler: Compiler | None = None,
    progress: Callable[[str], None] = lambda words: None,
) -> tuple[SizedPlan[MeshSizes], ...]:
    """The best mesh for a step, by compiling those that may be it.

    Meshes and options are searched together, as `plan_workload` says. Without an
    advice, all that bounds a mesh before it is compiled is the time to read its
    arguments once; with one, also the kernels and bubbles that its model needs.

    Args:
        factory: Makes the step of a mesh.
        meshes: To choose from, each of the cluster's number of devices.
        cluster: Such as `"h100:8x8"`.
        advice: What `choose` returned for this step.
        budget: For the plan of each.
        compiler: Whose processes and store to use.
        progress: Called with a line for each mesh.

    Returns:
        All meshes, the fastest first.

    Raises:
        MeshError: A mesh has another number of devices than the cluster.
    """
    where = cluster_named(cluster)
    every = tuple(meshes)
    for sizes in every:
        if sizes.devices != where.devices:
            raise MeshError(
                f"a mesh of {sizes.devices} devices, but {where.name} has "
                f"{where.devices}"
            )
    batch = advice.batch if advice is not None else None
    workload = _workload(factory, where, batch)
    if advice is not None:
        bound = functools.partial(_bound, advice, MeshPrices(CostModel.of(where)))
        workload = dataclasses.replace(workload, bound=bound)
    request = Request(budget=budget, progress=progress)
    return plan_workload(workload, every, request, compiler=compiler)


def _workload(
    factory: Factory, cluster: Cluster, batch: StepBatch | None
) -> SizedWorkload[MeshSizes]:
    return SizedWorkload(lambda sizes: made_step(factory, sizes, batch), cluster)


def _bound(advice: MeshAdvice, prices: MeshPrices, sizes: MeshSizes) -> float:
    of_all = kernel_bound(advice.shape, sizes, advice.batch, advice.framework, prices)
    return LEAST_KERNELS * of_all
