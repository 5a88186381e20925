"""What jax compiled, as the rest of the kit takes it, or why it did not."""

from __future__ import annotations

from typing import Any


def module_bytes(compiled: Any) -> bytes:
    """The scheduled module of a `jax.stages.Compiled`: a serialised `HloModuleProto`.

    Example:
        >>> import jax
        >>> from lagom_jax.hlo import read_module
        >>> lowered = jax.jit(lambda x: x + 1).lower(1.0)
        >>> read_module(module_bytes(lowered.compile())).devices
        1
    """
    (module,) = compiled.runtime_executable().hlo_modules()
    return module.as_serialized_hlo_module_proto()


def first_line(error: Exception) -> str:
    """What an error says first; XLA's say much.

    Example:
        >>> first_line(ValueError("no room" + chr(10) + "and more"))
        'no room'
    """
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
