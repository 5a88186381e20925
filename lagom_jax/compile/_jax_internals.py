"""Parts of jax that it does not promise to keep.

Only this module, `_jax_modules`, `_jaxlib` and `_plugin_pass` touch such, and all by
`internal`.

Verified on `VERIFIED_ON`. What is used, and why nothing public will do:

- `Lowered._lowering` (`MeshComputation`): shardings, propagation flags, compiler
  options and devices of a lowered function;
- `LoweringParameters(override_lowering_rules=)`: debug prints have no lowering for a
  platform that is not there;
- `pjit.jit_lower`, `PjitFunction.lower`: what wrappers without `.trace` would lower;
- `ModuleContext.get_backend`: callbacks look for the platform that they are for;
- `xla_bridge.backends_are_initialized`: whether starting jax can still be heard;
- `xla_bridge._discover_and_register_pjrt_plugins`: loads them before anything starts;
- `cudnn.fused_attention_stablehlo.check_*`: jax asks the machine that it traces on;
- `xla_bridge._plugin_callbacks`: the calls that XLA may cut along their batch;
- `distributed.global_state`: `jax.process_index` starts the backends, and nothing
  public leads to the coordination service.

The C interface of the compiler's plugin is touched in `_plugin_pass` alone.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from lagom_jax.compile._internal import internal
from lagom_jax.compile.toolchain import VERIFIED_ON
from lagom_jax.errors import ToolchainError

_CUDNN_KERNELS = (
    "_dot_product_attention_fwd_p",
    "_dot_product_attention_fwd_p_wrapper",
    "_dot_product_attention_bwd_p",
    "_dot_product_attention_bwd_p_wrapper",
)

# As `lagom_jax.cluster.target` states it to the compiler.
_CUDNN = 90800

DEBUG_PRIMITIVES = ("debug_callback", "debug_print", "inspect_sharding")


def backends_started() -> bool:
    """True if this process has already started jax's backends."""
    return internal("jax._src.xla_bridge", "backends_are_initialized")()


def load_plugins() -> None:
    """Loads the plugins of jax, which print as they are loaded, and starts none."""
    internal("jax._src.xla_bridge", "_discover_and_register_pjrt_plugins")()


def distributed_state() -> Any:
    """The state of `jax.distributed`: its client, and this process among all."""
    state = internal("jax._src.distributed", "global_state")
    for name in ("client", "process_id", "num_processes"):
        internal(state, name)
    return state


def equations(jaxpr: Any, *, outside: str = "") -> Iterator[Any]:
    """Every equation of a jaxpr, those of the jaxprs inside it included.

    Args:
        jaxpr: The jaxpr.
        outside: A primitive's name: what is inside of its jaxprs is left out.
    """
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    for equation in jaxpr.eqns:
        yield equation
        if equation.primitive.name == outside:
            continue
        for inner in jaxprs_in(equation):
            yield from equations(inner, outside=outside)


def jaxprs_in(equation: Any) -> Iterator[Any]:
    """The jaxprs directly inside of an equation, as the body of a loop."""
    for parameter in equation.params.values():
        for one in parameter if isinstance(parameter, (tuple, list)) else [parameter]:
            if hasattr(getattr(one, "jaxpr", one), "eqns"):
                yield one


def lower_for_gpu(traced: Any, *, without_debug_prints: bool) -> Any:
    """Lowers a traced function for CUDA, whatever devices are here."""
    with _any_backend():
        return _lowered_for_gpu(traced, without_debug_prints)


@contextlib.contextmanager
def _any_backend() -> Iterator[None]:
    """Lets callbacks be lowered, which look whether their platform is here."""
    kind: Any = internal("jax._src.interpreters.mlir", "ModuleContext")
    before = internal(kind, "get_backend")

    def backend(context: Any, *_args: Any, **_named: Any) -> Any:
        return context.backend

    kind.get_backend = backend
    try:
        yield
    finally:
        kind.get_backend = before


def _lowered_for_gpu(traced: Any, without_debug_prints: bool) -> Any:
    if not without_debug_prints:
        with _without_devices(traced.jaxpr):
            return traced.lower(lowering_platforms=("cuda",))
    parameters = internal("jax._src.interpreters.mlir", "LoweringParameters")
    rules = tuple(
        (internal("jax._src.debugging", f"{name}_p"), _lowers_to_nothing)
        for name in DEBUG_PRIMITIVES
    )
    with _without_devices(traced.jaxpr):
        return traced.lower(
            lowering_platforms=("cuda",),
            _private_parameters=parameters(override_lowering_rules=rules),
        )


def _lowers_to_nothing(_context: Any, *_operands: Any, **_parameters: Any) -> list[Any]:
    return []


class _CapturedCall(BaseException):
    """Ends a lowering of which only the arguments are wanted.

    Not an `Exception`, so that no wrapper catches it.
    """

    def __init__(self, jitted: Any, args: tuple[Any, ...], kwargs: Any) -> None:
        self.jitted, self.args, self.kwargs = jitted, args, kwargs


def trace_of_lowering(
    lower: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """The traced function that a wrapper of a jitted function would lower.

    Some wrappers, such as `eqx.filter_jit`, have `.lower` and no `.trace`. They tell
    arrays from other arguments, and some of them take a `jax.ShapeDtypeStruct` for no
    array; such a wrapper is shown arrays that are being traced.

    Args:
        lower: The wrapper's method.
        args: The arguments it would be called with.
        kwargs: The same by keyword.

    Returns:
        A `jax.stages.Traced`, or what the wrapper returned where it lowered none.

    Example:
        >>> jitted = jax.jit(lambda x: x + 1)
        >>> wrapped = lambda x: jitted.lower(x)
        >>> type(trace_of_lowering(wrapped, (1.0,), {})).__name__
        'Traced'
    """
    leaves, tree = jax.tree.flatten((args, dict(kwargs)))
    numbers = [n for n, x in enumerate(leaves) if isinstance(x, jax.ShapeDtypeStruct)]
    with _captured_calls():
        try:
            return lower(*args, **kwargs)
        except _CapturedCall as call:
            captured = call
        except Exception:
            if not numbers:
                raise
            captured = None
    if captured is not None:
        try:
            return captured.jitted.trace(*captured.args, **captured.kwargs)
        except Exception:
            if not numbers:
                raise
    known: dict[int, Any] = {}

    def shown(arrays: list[Any]) -> None:
        filled = list(leaves)
        for number, array in zip(numbers, arrays, strict=True):
            filled[number] = array
            known[id(array)] = leaves[number]
        positional, named = jax.tree.unflatten(tree, filled)
        lower(*positional, **named)

    with _captured_calls():
        try:
            jax.eval_shape(shown, [leaves[number] for number in numbers])
        except _CapturedCall as call:
            captured = call
    assert captured is not None
    again = jax.tree.map(
        lambda leaf: known.get(id(leaf), leaf), (captured.args, captured.kwargs)
    )
    return captured.jitted.trace(*again[0], **again[1])


@contextlib.contextmanager
def _captured_calls() -> Iterator[None]:
    kind: Any = type(jax.jit(_captured_calls))
    before = internal("jax._src.pjit", "jit_lower")
    module: Any = importlib.import_module("jax._src.pjit")

    def capture(jitted: Any, *args: Any, **kwargs: Any) -> Any:
        raise _CapturedCall(jitted, args, kwargs)

    # Every call of `jax.jit` gives the class this function anew.
    module.jit_lower = kind.lower = capture
    try:
        yield
    finally:
        module.jit_lower = kind.lower = before


@contextlib.contextmanager
def _without_devices(jaxpr: Any) -> Iterator[None]:
    """Lets jax lower cuDNN's kernels on a mesh that has no devices.

    Inside `shard_map` they need none, since each works on its own part; one outside has
    to be cut, for which jax needs them.
    """
    dispatch = importlib.import_module("jax._src.dispatch")
    module = importlib.import_module("jax._src.cudnn.fused_attention_stablehlo")
    needing: set[Any] = internal(dispatch, "prim_requires_devices_during_lowering")
    kernels = {internal(module, name) for name in _CUDNN_KERNELS} & needing
    outside = {one.primitive for one in equations(jaxpr, outside="shard_map")}
    if kernels & outside:
        kernels = set[Any]()
    needing -= kernels
    try:
        yield
    finally:
        needing |= kernels


@contextlib.contextmanager
def cudnn_for(compute_capability: str) -> Iterator[None]:
    """Lets jax trace cuDNN's kernels for a GPU that is not here.

    jax asks the installed cuDNN for its version and the GPU that is here for its
    capability; inside the block it is answered for the one that is compiled for.

    Args:
        compute_capability: Of that GPU, as `9.0`.
    """
    name = "jax._src.cudnn.fused_attention_stablehlo"
    internal(name, "check_cudnn_version")
    module = importlib.import_module(name)
    there = _version(compute_capability)
    answers: dict[str, Callable[..., Any]] = {
        "check_cudnn_version": lambda: _CUDNN,
        "check_compute_capability": lambda asked: there >= _version(asked),
        "is_cuda_compute_capability_equal": lambda asked: there == _version(asked),
    }
    before = {name: internal(module, name) for name in answers}
    vars(module).update(answers)
    try:
        yield
    finally:
        vars(module).update(before)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.rstrip("abcdef").split("."))


def batch_partitionable(targets: Sequence[str]) -> tuple[str, ...]:
    """Those of the called functions that XLA may cut along their batch dimensions.

    jax says so to each plugin as it loads it.

    Args:
        targets: Names of custom calls.

    Example:
        >>> batch_partitionable(["cusolver_getrf_ffi", "my_kernel"])
        ('cusolver_getrf_ffi',)
    """
    said = internal(
        "jax._src.lib", "xla_client.register_custom_call_as_batch_partitionable"
    )
    callbacks: list[Any] = internal("jax._src.xla_bridge", "_plugin_callbacks")
    names = {
        name
        for callback in callbacks
        if getattr(callback, "func", None) is said
        for name in callback.args
    }
    return tuple(name for name in targets if name in names)


def platforms(lowered: Any) -> tuple[str, ...]:
    """The platforms that a `jax.stages.Lowered` was lowered for."""
    return tuple(internal(lowered, "_lowering._platforms"))


def lowered_devices(lowered: Any) -> tuple[Any, ...]:
    """All devices that a `jax.stages.Lowered` runs on, in the order of their ids."""
    found = internal(lowered, "_lowering._device_list")
    return tuple(sorted(found or (), key=lambda device: device.id))


def compile_facts(lowered: Any) -> dict[str, Any]:
    """Compile arguments that jax would pass to the compiler along with the module."""
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
    name = module_name.removeprefix("jit(").removesuffix(")")
    # A partial has no name, and jax's words for that say nothing.
    return "step" if name.startswith("<") else name


def _first_mesh(shardings: Sequence[Any], context: Any) -> tuple[tuple[str, int], ...]:
    meshes = [getattr(sharding, "mesh", None) for sharding in shardings]
    for mesh in (*meshes, context):
        if mesh is not None and not mesh.empty:
            return tuple((str(name), int(size)) for name, size in mesh.shape.items())
    return ()
