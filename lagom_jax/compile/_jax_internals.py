"""The only module that touches what jax does not promise to keep.

Verified on `VERIFIED_ON`. What is used, and why nothing public will do:

- `Lowered._lowering` (`MeshComputation`): shardings, propagation flags, compiler
  options and devices of a lowered function;
- `LoweringParameters(override_lowering_rules=)`: debug prints have no lowering for a
  platform that is not there;
- `pxla.create_compile_options` and `CompileOnlyPyClient.compile`: jax's own options
  for a module that another process lowered;
- `mlir.make_ir_context`: to read a lowered module again;
- `xla_bridge.backends_are_initialized`: whether starting jax can still be heard;
- `distributed.global_state`: `jax.process_index` starts the backends, and nothing
  public leads to the coordination service.

The C interface of the compiler's plugin is touched in `_plugin_pass` alone.
"""

from __future__ import annotations

import dataclasses
import importlib
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from lagom_jax.compile.locations import Locations, separated
from lagom_jax.compile.toolchain import VERIFIED_ON
from lagom_jax.errors import ToolchainError

DEBUG_PRIMITIVES = ("debug_callback", "debug_print")


def internal(owner: object, path: str) -> Any:
    """An attribute of jax's inside, or a ToolchainError that says what to install.

    Example:
        >>> internal("jax._src.xla_bridge", "backends_are_initialized").__name__
        'backends_are_initialized'
    """
    try:
        found: Any = importlib.import_module(owner) if isinstance(owner, str) else owner
        for name in path.split("."):
            found = getattr(found, name)
        return found
    except (ImportError, AttributeError) as error:
        raise ToolchainError(
            f"jax {jax.__version__} has changed inside: {error}. lagom_jax was "
            f"verified on jax {' and '.join(VERIFIED_ON)}; install one of these."
        ) from error


def backends_started() -> bool:
    """Whether this process has already started jax's backends."""
    return internal("jax._src.xla_bridge", "backends_are_initialized")()


def distributed_state() -> Any:
    """What `jax.distributed` knows: its client, and this process among all."""
    state = internal("jax._src.distributed", "global_state")
    for name in ("client", "process_id", "num_processes"):
        internal(state, name)
    return state


def equations(jaxpr: Any) -> Iterator[Any]:
    """Every equation of a jaxpr, those of the jaxprs inside it included."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    for equation in jaxpr.eqns:
        yield equation
        for parameter in equation.params.values():
            inner = parameter if isinstance(parameter, (tuple, list)) else [parameter]
            for candidate in inner:
                if hasattr(getattr(candidate, "jaxpr", candidate), "eqns"):
                    yield from equations(candidate)


def lower_for_gpu(traced: Any, *, without_debug_prints: bool) -> Any:
    """Lowers a traced function for CUDA, whatever devices are here."""
    if not without_debug_prints:
        return traced.lower(lowering_platforms=("cuda",))
    parameters = internal("jax._src.interpreters.mlir", "LoweringParameters")
    rules = tuple(
        (internal("jax._src.debugging", f"{name}_p"), _lowers_to_nothing)
        for name in DEBUG_PRIMITIVES
    )
    return traced.lower(
        lowering_platforms=("cuda",),
        _private_parameters=parameters(override_lowering_rules=rules),
    )


def _lowers_to_nothing(_context: Any, *_operands: Any, **_parameters: Any) -> list[Any]:
    return []


def platforms(lowered: Any) -> tuple[str, ...]:
    """What a `jax.stages.Lowered` was lowered for."""
    return tuple(internal(lowered, "_lowering._platforms"))


def compile_facts(lowered: Any) -> dict[str, Any]:
    """What jax would hand to the compiler beside the module itself."""
    computation = internal(lowered, "_lowering")
    arguments: Mapping[str, Any] = internal(computation, "compile_args")
    try:
        in_shardings = arguments["in_shardings"]
        out_shardings = arguments["out_shardings"]
        ordered_effects = arguments["ordered_effects"]
        facts = {
            "tuple_args": bool(arguments["tuple_args"]),
            "device_count": int(arguments["num_devices"]),
            "host_callbacks": len(arguments["host_callbacks"]),
        }
        shardings = [
            *in_shardings,
            *out_shardings,
            *arguments["intermediate_shardings"],
        ]
        context_mesh = arguments["context_mesh"]
    except KeyError as error:
        raise ToolchainError(
            f"jax {jax.__version__} has changed inside: no {error} among the compile "
            f"arguments. lagom_jax was verified on jax {' and '.join(VERIFIED_ON)}; "
            "install one of these."
        ) from error
    flags = internal("jax._src.interpreters.pxla", "get_prop_to_input_output")
    to_inputs, to_outputs = flags(in_shardings, out_shardings, len(ordered_effects))
    device_list = internal(computation, "_device_list")
    return facts | {
        "name": _function_name(internal(computation, "_name")),
        "options": dict(internal(computation, "_compiler_options_kvs")),
        "propagate_to_inputs": tuple(map(bool, to_inputs)),
        "propagate_to_outputs": tuple(map(bool, to_outputs)),
        "device_ids": tuple(d.id for d in device_list) if device_list else (),
        "mesh": _first_mesh(shardings, context_mesh),
    }


def _function_name(module_name: str) -> str:
    return module_name.removeprefix("jit(").removesuffix(")")


def _first_mesh(shardings: Sequence[Any], context: Any) -> tuple[tuple[str, int], ...]:
    meshes = [getattr(sharding, "mesh", None) for sharding in shardings]
    for mesh in (*meshes, context):
        if mesh is not None and not mesh.empty:
            return tuple((str(name), int(size)) for name, size in mesh.shape.items())
    return ()


@dataclasses.dataclass(frozen=True, slots=True)
class ModuleApart:
    """A module, and the places that it was written at."""

    bytecode: bytes
    """The module with numbers for places."""
    text: str
    """The same as text."""
    text_without_names: str
    """As text, without where operations come from and what they are called."""
    locations: Locations


def module_apart(module: Any) -> ModuleApart:
    """A StableHLO module, and the places that it was written at, by themselves."""
    ir = internal("jax._src.lib.mlir", "ir")
    bare = module.operation.get_asm(enable_debug_info=False)
    found = separated(module.operation.get_asm(enable_debug_info=True))
    if found is not None:
        text, places = found
        with internal("jax._src.interpreters.mlir", "make_ir_context")():
            parsed = ir.Module.parse(text)
            # Whatever could not be read back as it was stays with its places.
            if parsed.operation.get_asm(enable_debug_info=False) == bare:
                return _apart(parsed, bare, places)
    return _apart(module, bare, Locations())


def _apart(module: Any, bare: str, locations: Locations) -> ModuleApart:
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    text = module.operation.get_asm(enable_debug_info=True)
    return ModuleApart(buffer.getvalue(), text, bare, locations)


def _parsed(module: bytes) -> Any:
    ir = internal("jax._src.lib.mlir", "ir")
    with internal("jax._src.interpreters.mlir", "make_ir_context")():
        return ir.Module.parse(module)


def compile_module(
    module: bytes,
    devices: Sequence[Any],
    *,
    tuple_args: bool,
    propagate_to_inputs: Sequence[bool],
    propagate_to_outputs: Sequence[bool],
    options: Mapping[str, Any],
) -> Any:
    """Compiles StableHLO bytecode for devices that need not exist.

    Args:
        module: StableHLO as MLIR bytecode.
        devices: Compile-only devices, in the order of the partitions.
        tuple_args: Whether the parameters are one tuple.
        propagate_to_inputs: Per parameter, whether XLA chooses its sharding.
        propagate_to_outputs: Per result, whether XLA chooses its sharding.
        options: Compiler options; `fdo_profile` is a profile, not a flag.

    Returns:
        The executable, which cannot be run here.
    """
    parsed = _parsed(module)
    client = devices[0].client
    compile_options = internal("jax._src.interpreters.pxla", "create_compile_options")(
        parsed,
        tuple_args,
        list(propagate_to_inputs),
        list(propagate_to_outputs),
        client,
        np.array(devices, dtype=object),
        dict(options),
    )
    device_list = internal("jax._src.lib", "_jax.DeviceList")(tuple(devices))
    return client.compile(
        parsed, executable_devices=device_list, compile_options=compile_options
    )
