"""A user's training step, traced and lowered for GPUs that need not be there.

Only tracing happens in the user's process: no weight is allocated, nothing is
compiled, and arrays that live on the CPU do not make this a program for the CPU. The
mesh may be abstract or made of virtual CPU devices; only its shape matters.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import jax

from lagom_jax.compile import _jax_internals, _jax_modules, partitioning
from lagom_jax.compile.context import trace_in_context
from lagom_jax.compile.locations import Locations
from lagom_jax.compile.questions import current_cluster
from lagom_jax.compile.starting import start_jax
from lagom_jax.compile.tracing import described, first_paragraph
from lagom_jax.errors import StepError

# What of jax's configuration ends up among the compile options.
_COMPILER_SETTINGS = (
    "jax_use_shardy_partitioner",
    "jax_optimization_level",
    "jax_memory_fitting_level",
    "jax_exec_time_optimization_effort",
    "jax_memory_fitting_effort",
    "jax_compiler_enable_remat_pass",
    "jax_disable_most_optimizations",
    "jax_xla_profile_version",
)


@dataclasses.dataclass(frozen=True, slots=True)
class LoweredStep:
    """Everything XLA's GPU compiler needs to know of a step.

    Example:
        >>> import jax
        >>> step = lower(lambda x: x * 2, jax.ShapeDtypeStruct((8,), "float32"))
        >>> step.device_count, step.argument_count, step.mesh
        (1, 1, ())
        >>> other = lower(lambda x: x * 2, jax.ShapeDtypeStruct((9,), "float32"))
        >>> step.fingerprint == other.fingerprint
        False
    """

    name: str
    """The step's own name."""
    stablehlo: bytes = dataclasses.field(repr=False)
    """The module as MLIR bytecode, without where its operations come from."""
    locations: Locations = dataclasses.field(repr=False)
    """Their places in the source."""
    digest: str
    """Of all that is in the module, names of operations included."""
    fingerprint: str
    """A hash of the program: the same in every process and from every folder.

    It is made of the StableHLO text without debug information, so of operations,
    shapes, shardings, donation and the names of arguments; not of compiler options. A
    Pallas kernel is bytecode with debug information of its own, so with one the hash
    does depend on the folder.
    """
    num_partitions: int
    num_replicas: int
    tuple_args: bool
    allow_propagation_to_inputs: tuple[bool, ...] = dataclasses.field(repr=False)
    """Per parameter of the module: whether XLA may choose its sharding."""
    allow_propagation_to_outputs: tuple[bool, ...] = dataclasses.field(repr=False)
    compiler_options: dict[str, Any]
    """The user's own `jax.jit(compiler_options=...)`."""
    donated: tuple[bool, ...] = dataclasses.field(repr=False)
    """Per array among the step's arguments, in the order of their tree."""
    mesh: tuple[tuple[str, int], ...]
    """Names and sizes of the mesh's axes; empty without a mesh."""
    device_order: tuple[int, ...] = dataclasses.field(repr=False)
    """The device of each partition, counted from 0."""
    argument_count: int
    """Parameters of the module: arguments that are used, and hoisted constants."""
    custom_calls: tuple[str, ...] = dataclasses.field(repr=False)
    """Names of the functions that the module calls."""
    batch_partitionable: tuple[str, ...] = dataclasses.field(repr=False)
    """Those of them that XLA may cut along their batch dimensions."""
    settings: dict[str, Any] = dataclasses.field(repr=False)
    """The configuration of jax as far as it reaches the compiler."""
    notes: tuple[str, ...] = ()
    """Differences from the program that would run on the GPUs, in words."""
    rules: Mapping[str, partitioning.PartitioningRule] = dataclasses.field(
        default_factory=dict[str, partitioning.PartitioningRule],
        repr=False,
        compare=False,
    )
    """The rules by which calls are partitioned: functions, which are alive."""
    cautions: tuple[str, ...] = ()
    """Reasons why the step may be another program than on the cluster."""

    @property
    def device_count(self) -> int:
        """The number of devices that the step is made for."""
        return self.num_partitions * self.num_replicas


def lower(step: Any, /, *args: Any, **kwargs: Any) -> LoweredStep:
    """Traces a step for the arguments it would be called with, and lowers it for GPUs.

    Args:
        step: A function, a jitted function (its shardings, donation, static arguments
            and compiler options are kept), a method or partial of one, an `nnx.jit`
            function, or what `.trace(...)` of one of these returned. What has been
            lowered already is returned as it is.
        *args: What the step is called with: arrays, `jax.ShapeDtypeStruct`s with a
            sharding on a `Mesh` or an `AbstractMesh`, numpy arrays, numbers, trees.
        **kwargs: The same by keyword.

    Returns:
        The lowered step, ready for `compile_step`.

    Raises:
        StepError: jax refuses the arguments, or the step needs a device to be
            lowered. Whatever the step itself raises comes through as it is.
        LagomError: jax cannot start here, as with unknown words in `XLA_FLAGS`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from jax.sharding import AbstractMesh, AxisType, NamedSharding
        >>> from jax.sharding import PartitionSpec as P
        >>> mesh = AbstractMesh((8,), ("data",), axis_types=(AxisType.Auto,))
        >>> batch = jax.ShapeDtypeStruct(
        ...     (64, 4), jnp.bfloat16, sharding=NamedSharding(mesh, P("data"))
        ... )
        >>> lowered = lower(jax.jit(lambda x: x + 1, donate_argnums=0), batch)
        >>> lowered.device_count, lowered.mesh, lowered.donated
        (8, (('data', 8),), (True,))
    """
    if isinstance(step, LoweredStep):
        return step
    if not _jax_internals.backends_started():
        # Lowering starts them anyway; here what they print can be held back.
        start_jax()
    found = trace_in_context(step, args, kwargs, current_cluster())
    stage = found.stage
    if isinstance(stage, jax.stages.Lowered):
        return _lowered_step(stage, notes=())
    primitives = collections.Counter(_primitives(stage))
    prints = sum(primitives[name] for name in _jax_internals.DEBUG_PRIMITIVES)
    notes = list(found.notes)
    if prints:
        notes.append(f"{prints} jax.debug callback(s) were left out")
    if primitives["donating jit"] and not any(_donated(stage)):
        notes.append(
            "the step calls a jitted function that donates arguments, and is not "
            "jitted with donation itself: memory is counted without donation. Give "
            "the jitted function instead."
        )
    try:
        lowered = _jax_internals.lower_for_gpu(stage, without_debug_prints=prints > 0)
    except (ValueError, TypeError, NotImplementedError, RuntimeError) as error:
        raise StepError(
            f"jax cannot lower {described(step)} for GPUs: {first_paragraph(error)}"
        ) from error
    return _lowered_step(lowered, tuple(notes), found.cautions)


def _primitives(traced: Any) -> Iterable[str]:
    for equation in _jax_internals.equations(traced.jaxpr):
        yield equation.primitive.name
        if any(equation.params.get("donated_invars", ())):
            yield "donating jit"


def _donated(stage: Any) -> tuple[bool, ...]:
    return tuple(bool(info.donated) for info in jax.tree.leaves(stage.args_info))


def _lowered_step(
    lowered: Any, notes: tuple[str, ...], cautions: tuple[str, ...] = ()
) -> LoweredStep:
    facts = _jax_internals.compile_facts(lowered)
    module = lowered.compiler_ir("stablehlo")
    text = module.operation.get_asm(enable_debug_info=False)
    rules = partitioning.rules_of(text)
    called = partitioning.called_targets(text)
    module = _jax_modules.module_apart(
        module, functools.partial(partitioning.renamed, rules=rules)
    )
    return LoweredStep(
        name=facts["name"],
        stablehlo=module.bytecode,
        locations=module.locations,
        digest=sha256(module.text),
        fingerprint=sha256(module.text_without_names),
        num_partitions=facts["device_count"],
        num_replicas=1,
        tuple_args=facts["tuple_args"],
        allow_propagation_to_inputs=facts["propagate_to_inputs"],
        allow_propagation_to_outputs=facts["propagate_to_outputs"],
        compiler_options=facts["options"],
        donated=_donated(lowered),
        mesh=facts["mesh"],
        device_order=_order(facts["device_ids"], facts["device_count"]),
        argument_count=len(facts["propagate_to_inputs"]),
        custom_calls=called,
        batch_partitionable=_jax_internals.batch_partitionable(called),
        settings=compiler_settings(),
        notes=notes,
        rules=rules,
        cautions=cautions,
    )


def compiler_settings() -> dict[str, Any]:
    """The configuration of jax as far as it reaches the compiler.

    Example:
        >>> compiler_settings()["jax_optimization_level"]
        'UNKNOWN'
    """
    # Some can be set for a block, and are attributes; the others are not.
    every: Mapping[str, Any] = jax.config.values  # pyright: ignore[reportAttributeAccessIssue]
    return {
        name: getattr(jax.config, name, every[name])
        for name in _COMPILER_SETTINGS
        if name in every
    }


def sha256(text: str) -> str:
    """A hash of a text, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def _order(ids: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Ranks of device ids, which count in leaps where several processes are."""
    if not ids:
        return tuple(range(count))
    ranks = {device: rank for rank, device in enumerate(sorted(ids))}
    return tuple(ranks[device] for device in ids)
