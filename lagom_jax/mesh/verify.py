"""Verification: the best meshes compiled, replayed with plans, and ranked anew."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from lagom_jax.cluster import Cluster
from lagom_jax.errors import LagomError
from lagom_jax.mesh.choose import MeshAdvice, MeshChoice
from lagom_jax.mesh.model_shape import MeshError
from lagom_jax.mesh.sizes import AXES, MeshSizes, StepBatch
from lagom_jax.planner import Budget, make_plan
from lagom_jax.scheduled import cluster_named

if TYPE_CHECKING:
    from lagom_jax.compile import Compiler

Factory: TypeAlias = Callable[..., Any]
"""Takes sizes of a mesh by the names of `MeshSizes`, as many of them as it names, and
returns a step and a tuple of its arguments."""
ONE_COMPILE: Final = Budget(compiles=1)
_GIVEN: Final = (*AXES, "micro_batch", "remat", "tensor_sequence", "interleave")


@dataclasses.dataclass(frozen=True, slots=True)
class MeshTrial:
    """A mesh whose step was compiled and planned, or dropped before."""

    sizes: MeshSizes
    bound_seconds: float
    """A time that no step on it can be shorter than, or what is predicted of it."""
    step_seconds: float | None
    """Replayed with its plan; None if it was dropped or refused."""
    peak_bytes: int | None
    refused: str = ""
    """The reason not to have built or compiled it; empty if it was."""


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
    named = inspect.signature(factory).parameters
    some = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in named.values())
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
    done: list[MeshChoice] = []
    for place, choice in enumerate(advice.choices[:best]):
        progress(f"mesh {place + 1} of {min(best, len(advice.choices))} ...")
        trial = _trial(
            *(factory, choice.sizes, advice.cluster, advice.batch),
            *(choice.step_seconds, budget, compiler),
        )
        done.append(
            dataclasses.replace(
                choice,
                verified_step_seconds=trial.step_seconds,
                verified_memory_bytes=trial.peak_bytes,
                refused=trial.refused,
            )
        )
    done.sort(
        key=lambda one: (
            one.verified_step_seconds is None,
            one.verified_step_seconds or one.step_seconds,
        )
    )
    return dataclasses.replace(advice, choices=(*done, *advice.choices[best:]))


def choose_by_compiling(
    factory: Factory,
    meshes: Iterable[MeshSizes],
    *,
    cluster: str | Cluster,
    budget: Budget = ONE_COMPILE,
    compiler: Compiler | None = None,
    progress: Callable[[str], None] = lambda words: None,
) -> tuple[MeshTrial, ...]:
    """The best mesh for a step whose dimensions nobody has written down.

    Each mesh is traced, which bounds its step from below: a device must read its
    arguments once. Meshes whose arguments overflow memory, and those whose bound is
    above the best step so far, are not compiled.

    Args:
        factory: Makes the step of a mesh.
        meshes: To choose from, each of the cluster's number of devices.
        cluster: Such as `"h100:8x8"`.
        budget: For the plan of each.
        compiler: Whose processes and store to use.
        progress: Called with a line for each mesh.

    Returns:
        All meshes, the fastest first.

    Raises:
        MeshError: A mesh has another number of devices than the cluster.
    """
    where = cluster_named(cluster)
    room = budget.memory(where.gpu.memory_bytes)
    bounded: list[tuple[float, int, MeshSizes]] = []
    trials: list[MeshTrial] = []
    for sizes in meshes:
        if sizes.devices != where.devices:
            raise MeshError(
                f"a mesh of {sizes.devices} devices, but {where.name} has "
                f"{where.devices}"
            )
        try:
            _, arguments = made_step(factory, sizes)
        except LagomError as error:
            trials.append(MeshTrial(sizes, 0.0, None, None, str(error)))
            continue
        held = argument_bytes(arguments)
        bounded.append((held / where.gpu.memory_bytes_per_s, held, sizes))
    fastest = float("inf")
    for bound, held, sizes in sorted(bounded, key=lambda item: item[0]):
        if held > room or bound > fastest:
            why = "its arguments overflow memory" if held > room else "bound too high"
            trials.append(MeshTrial(sizes, bound, None, None, why))
            continue
        progress(f"compiling mesh {len(trials) + 1} of {len(bounded)} ...")
        trial = _trial(factory, sizes, where, None, bound, budget, compiler)
        trials.append(trial)
        fastest = min(fastest, trial.step_seconds or fastest)
    trials.sort(key=lambda one: (one.step_seconds is None, one.step_seconds or 0.0))
    return tuple(trials)


def argument_bytes(arguments: tuple[Any, ...]) -> int:
    """Bytes of a step's arguments on one device, by their shardings."""
    # Here and not above: the core of the room works without jax.
    from lagom_jax.compile.tracing import bytes_on_a_device

    return bytes_on_a_device(arguments)


def _trial(
    factory: Factory,
    sizes: MeshSizes,
    cluster: Cluster,
    batch: StepBatch | None,
    bound: float,
    budget: Budget,
    compiler: Compiler | None,
) -> MeshTrial:
    try:
        step, arguments = made_step(factory, sizes, batch)
        plan = make_plan(
            step, *arguments, cluster=cluster, budget=budget, compiler=compiler
        )
    except LagomError as error:
        return MeshTrial(sizes, bound, None, None, str(error))
    found = plan.evidence
    return MeshTrial(sizes, bound, found.tuned.step_seconds, found.tuned_peak)
