"""Parts of jax, not promised to stay, that kernels of others need to be compiled.

Verified as `_jax_internals` is. What is used, and why nothing public will do:

- `xla_bridge._plugin_callbacks`, `xla_client.Shape`, `.HloSharding`, `.OpSharding`:
  rules of `custom_partitioning` that another process knows;
- `cudnn.fused_attention_stablehlo.check_*`: jax asks the machine that it traces on;
- `cuda_plugin_extension.ffi_handlers`, `xla_client.register_custom_call_target`: names
  for kernels that are registered elsewhere.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import jax

from lagom_jax.compile._jax_internals import internal
from lagom_jax.errors import ToolchainError

# As `lagom_jax.cluster.target` states it to the compiler.
_CUDNN = 90800


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


def read_shape(text: str) -> Any:
    """A shape of XLA, as it prints itself."""
    return internal("jax._src.lib", "xla_client.Shape")(text)


def write_sharding(sharding: Any) -> bytes | None:
    """XLA's sharding as an `OpSharding`; None for none."""
    return None if sharding is None else sharding.to_proto().SerializeToString()


def read_sharding(serialised: bytes | None) -> Any:
    """XLA's sharding of an `OpSharding`."""
    if serialised is None:
        return None
    proto = internal("jax._src.lib", "xla_client.OpSharding")()
    proto.ParseFromString(serialised)
    return internal("jax._src.lib", "xla_client.HloSharding").from_proto(proto)


def replace_partitioner(
    call: str,
    propagate: Callable[..., Any],
    partition: Callable[..., Any],
    infer: Callable[..., Any],
) -> None:
    """Puts other rules for partitioning in the place of those of jax.

    jax registers its own with every plugin that is loaded, and this is to be called
    before one is.
    """
    callbacks: list[Any] = internal("jax._src.xla_bridge", "_plugin_callbacks")
    for number, callback in enumerate(callbacks):
        named = getattr(callback, "keywords", {})
        if named.get("name") == call:
            callbacks[number] = functools.partial(
                callback,
                prop_user_sharding=propagate,
                partition=partition,
                infer_sharding_from_operands=infer,
            )
            return
    raise ToolchainError(f"jax {jax.__version__} registers no rules for {call}")


def cuda_handlers() -> dict[str, Any]:
    """The functions that jax's plugin for CUDA registers."""
    for package in ("jax_cuda13_plugin", "jax_cuda12_plugin"):
        with contextlib.suppress(ImportError):
            plugin = importlib.import_module(f"{package}.cuda_plugin_extension")
            return dict(plugin.ffi_handlers())
    return {}


def register_for_cuda(name: str, function: Any, *, typed: bool) -> None:
    """Registers a function for the calls of a name."""
    internal("jax._src.lib", "xla_client.register_custom_call_target")(
        name, function, platform="CUDA", api_version=int(typed)
    )
