"""From a training step to a scheduled GPU module, on a machine without a GPU.

The way: `lower` traces the step and writes down what XLA needs to know of it,
`compile_step` runs XLA's GPU compiler on that in a child process, and `Toolchain`
says whether the installed parts of that compiler belong together. A `Compiler` keeps
such processes, and the kernels and steps that they have compiled before.

Names are loaded when they are first used, so that the toolchain can be examined
even where jax itself cannot be imported.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lagom_jax.compile.compiler import Compiler
    from lagom_jax.compile.deviceless import (
        CompiledStep,
        MemoryUse,
        Target,
        compile_step,
    )
    from lagom_jax.compile.known_options import known_flags
    from lagom_jax.compile.lowering import LoweredStep, lower
    from lagom_jax.compile.questions import questions_asked, traced_for
    from lagom_jax.compile.scheduled_order import ScheduledOrder
    from lagom_jax.compile.store import Store
    from lagom_jax.compile.toolchain import Toolchain

__all__ = [
    "CompiledStep",
    "Compiler",
    "LoweredStep",
    "MemoryUse",
    "ScheduledOrder",
    "Store",
    "Target",
    "Toolchain",
    "compile_step",
    "known_flags",
    "lower",
    "questions_asked",
    "traced_for",
]

_HOMES = {
    "compiler": ("Compiler",),
    "deviceless": (
        "CompiledStep",
        "MemoryUse",
        "Target",
        "compile_step",
    ),
    "known_options": ("known_flags",),
    "lowering": ("LoweredStep", "lower"),
    "questions": ("questions_asked", "traced_for"),
    "scheduled_order": ("ScheduledOrder",),
    "store": ("Store",),
    "toolchain": ("Toolchain",),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
