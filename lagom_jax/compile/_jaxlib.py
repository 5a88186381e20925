"""XLA's GPU compiler as jaxlib offers it, without jax.

Importing jax takes a second, three times as long as starting the compiler; the process
that compiles needs none of it. Of what jaxlib does not promise to keep this touches, on
the same versions as `_jax_internals`:

- `_jax.load_pjrt_plugin`, `get_c_api_topology`, `_make_compile_only_devices`,
  `CompileOnlyPyClient.compile`: what `jax.experimental.topologies` and jax's own
  compiles are made of;
- `CompileOptions`, filled in as jax does it;
- `mlir._mlir_libs`: to read a lowered module again;
- `xla_client.register_*`, `cuda_plugin_extension`: names for kernels that are
  registered elsewhere, and rules of `custom_partitioning` that another process knows;
- `xla_client.Shape`, `.HloSharding`, `.OpSharding`: questions of those rules.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from lagom_jax.compile._internal import internal
from lagom_jax.compile.toolchain import cuda_root
from lagom_jax.errors import ToolchainError

PLUGIN_LIBRARY: Final = "xla_cuda_plugin.so"
"""The file that holds XLA's GPU compiler."""
_PLUGINS = ("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12")
_EXTENSIONS = ("jax_cuda13_plugin", "jax_cuda12_plugin")
_PLATFORM = "CUDA"
_DIALECTS = ("_sdy", "_sdyMpmd", "_chlo", "_stablehlo")

# jax's words for what XLA counts.
_LEVELS = {"UNKNOWN": 0, "O0": 9, "O1": 19, "O2": 29, "O3": 39}
# Settings of jax that are build options under other names, and options that are none of
# XLA's flags.
_BUILD_SETTINGS = {
    "jax_use_shardy_partitioner": "use_shardy_partitioner",
    "jax_optimization_level": "optimization_level",
    "jax_memory_fitting_level": "memory_fitting_level",
    "jax_exec_time_optimization_effort": "exec_time_optimization_effort",
    "jax_memory_fitting_effort": "memory_fitting_effort",
}
_BUILD_OPTIONS = (*_BUILD_SETTINGS.values(), "fdo_profile")
_COMPILE_OPTIONS = ("individually_defined_output_indices",)
_NO_PROFILE = -1


def plugin_library() -> Path:
    """The file of jax's CUDA plugin.

    Raises:
        ToolchainError: It is not installed.

    Example:
        >>> plugin_library().name
        'xla_cuda_plugin.so'
    """
    for name in _PLUGINS:
        with contextlib.suppress(ImportError):
            found = importlib.util.find_spec(name)
            if found is not None and found.origin:
                return Path(found.origin).with_name(PLUGIN_LIBRARY)
    raise ToolchainError("jax's CUDA plugin is not installed")


@functools.cache
def plugin() -> Any:
    """The C interface of jax's CUDA plugin, loaded once, with the functions of jax."""
    load = internal("jaxlib.xla_client", "load_pjrt_plugin_dynamically")
    api = load("cuda", str(plugin_library()))
    extension = _extension()
    client: Any = importlib.import_module("jaxlib.xla_client")
    if extension is not None:
        client.register_custom_type_handler(
            _PLATFORM, functools.partial(extension.register_custom_type, api)
        )
        client.register_custom_call_handler(
            _PLATFORM, functools.partial(extension.register_custom_call_target, api)
        )
        for name, value in extension.ffi_types().items():
            client.register_custom_type(name, value, platform=_PLATFORM)
        for name, value in extension.ffi_handlers().items():
            register_for_cuda(name, value, typed=True)
    return api


def devices(topology: str, target_text: str) -> list[Any]:
    """Devices that need not exist, which can be compiled for.

    Args:
        topology: Slices, hosts per slice and GPUs per host, as in `8x1x8`.
        target_text: The GPU, as a `GpuTargetConfigProto` in text form.
    """
    make = internal("jaxlib._jax", "get_c_api_topology")
    described = make(plugin(), "", {"topology": topology, "target_config": target_text})
    return list(described._make_compile_only_devices())


def compile_module(module: bytes, chosen: Sequence[Any], options: Any) -> Any:
    """Compiles StableHLO for devices.

    Args:
        module: StableHLO as MLIR bytecode or text.
        chosen: Some of `devices`, in the order of the partitions.
        options: What `compile_options` returned.

    Returns:
        The executable, which cannot be run here.
    """
    with _context():
        parsed = internal("jaxlib.mlir.ir", "Module").parse(module)
    listed = internal("jaxlib._jax", "DeviceList")(tuple(chosen))
    return chosen[0].client.compile(
        parsed, executable_devices=listed, compile_options=options
    )


def _context() -> Any:
    """An MLIR context with the dialects of which lowered programs are made."""
    libraries = "jaxlib.mlir._mlir_libs"
    registry = internal("jaxlib.mlir.ir", "DialectRegistry")()
    internal(f"{libraries}._jax_mlir_ext", "register_dialects")(registry)
    context = internal("jaxlib.mlir.ir", "Context")()
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    for name in _DIALECTS:
        internal(f"{libraries}.{name}", "register_dialect")(context)
    internal(f"{libraries}._mlirHlo", "register_mhlo_dialect")(context)
    return context


def compile_options(
    ids: Sequence[int],
    *,
    tuple_args: bool,
    propagate_to_inputs: Sequence[bool],
    propagate_to_outputs: Sequence[bool],
    options: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> Any:
    """XLA's compile options, as jax fills them in.

    Args:
        ids: The devices of the partitions.
        tuple_args: Whether the parameters are one tuple.
        propagate_to_inputs: Per parameter, whether XLA chooses its sharding.
        propagate_to_outputs: Per result, whether XLA chooses its sharding.
        options: The compiler options; `fdo_profile` is a profile, not a flag.
        settings: jax's configuration, by name.

    Example:
        >>> made = compile_options(
        ...     range(8),
        ...     tuple_args=False,
        ...     propagate_to_inputs=[True],
        ...     propagate_to_outputs=[True],
        ...     options={"xla_gpu_autotune_level": 0, "optimization_level": "O1"},
        ...     settings={"jax_memory_fitting_level": "O2"},
        ... )
        >>> made.num_partitions, made.env_option_overrides
        (8, [('xla_gpu_autotune_level', 0)])
        >>> build = made.executable_build_options
        >>> build.optimization_level, build.memory_fitting_level
        (19, 29)
    """
    made = internal("jaxlib.xla_client", "CompileOptions")()
    made.num_replicas, made.num_partitions = 1, len(ids)
    assignment = internal("jaxlib.xla_client", "DeviceAssignment")
    made.device_assignment = assignment.create(np.array([list(ids)]))
    made.parameter_is_tupled_arguments = tuple_args
    made.profile_version = settings.get("jax_xla_profile_version") or _NO_PROFILE
    build = made.executable_build_options
    build.use_spmd_partitioning = True
    build.allow_spmd_sharding_propagation_to_parameters = list(propagate_to_inputs)
    build.allow_spmd_sharding_propagation_to_output = list(propagate_to_outputs)
    flags = dict(options)
    given = {b: settings[s] for s, b in _BUILD_SETTINGS.items() if s in settings}
    # jaxlib 0.12 has fewer of them; another is an option that XLA does not know.
    kept = [name for name in _BUILD_OPTIONS if name in flags and hasattr(build, name)]
    given |= {name: flags.pop(name) for name in kept}
    for name, value in given.items():
        setattr(build, name, _LEVELS.get(value, value))
    for name in _COMPILE_OPTIONS:
        if name in flags:
            setattr(made, name, flags.pop(name))
    made.env_option_overrides = list(flags.items())
    _set_debug_options(build.debug_options, settings)
    return made


def _set_debug_options(debug: Any, settings: Mapping[str, Any]) -> None:
    root = cuda_root()
    if root is not None:
        debug.xla_gpu_cuda_data_dir = str(root)
    if settings.get("jax_disable_most_optimizations"):
        debug.xla_backend_optimization_level = 0
        debug.xla_llvm_disable_expensive_passes = True
        debug.xla_test_all_input_layouts = False
    if not settings.get("jax_compiler_enable_remat_pass", True):
        left_out = [p for p in debug.xla_disable_hlo_passes.split(",") if p]
        debug.xla_disable_hlo_passes = ",".join([*left_out, "rematerialization"])


def read_shape(text: str) -> Any:
    """A shape of XLA, as it prints itself."""
    return internal("jaxlib.xla_client", "Shape")(text)


def write_sharding(sharding: Any) -> bytes | None:
    """XLA's sharding as an `OpSharding`; None for none."""
    return None if sharding is None else sharding.to_proto().SerializeToString()


def read_sharding(serialised: bytes | None) -> Any:
    """XLA's sharding of an `OpSharding`."""
    if serialised is None:
        return None
    proto = internal("jaxlib.xla_client", "OpSharding")()
    proto.ParseFromString(serialised)
    return internal("jaxlib.xla_client", "HloSharding").from_proto(proto)


def register_partitioner(
    call: str,
    propagate: Callable[..., Any],
    partition: Callable[..., Any],
    infer: Callable[..., Any],
) -> None:
    """Gives the compiler rules by which it partitions a call.

    Args:
        call: The call's name.
        propagate: The sharding of the call, from the one of its result.
        partition: The program of one device.
        infer: The sharding of the result, from those of the operands.
    """
    internal("jaxlib.xla_client", "register_custom_call_partitioner")(
        call,
        propagate,
        partition,
        infer,
        can_side_effecting_have_replicated_sharding=True,
        c_api=plugin(),
    )


@functools.cache
def register_batch_partitionable(name: str) -> None:
    """Lets the compiler cut the calls of a name along their batch dimensions."""
    register = internal(
        "jaxlib.xla_client", "register_custom_call_as_batch_partitionable"
    )
    register(name, c_api=plugin())


def cuda_handlers() -> dict[str, Any]:
    """The functions that jax's plugin for CUDA registers."""
    extension = _extension()
    return {} if extension is None else dict(extension.ffi_handlers())


@functools.cache
def _extension() -> Any:
    for package in _EXTENSIONS:
        with contextlib.suppress(ImportError):
            return importlib.import_module(f"{package}.cuda_plugin_extension")
    return None


def register_for_cuda(name: str, function: Any, *, typed: bool) -> None:
    """Registers a function for the calls of a name.

    Args:
        name: The name.
        function: The function.
        typed: Whether calls have typed arguments, as those of the FFI do.
    """
    internal("jaxlib.xla_client", "register_custom_call_target")(
        name, function, platform=_PLATFORM, api_version=int(typed)
    )
