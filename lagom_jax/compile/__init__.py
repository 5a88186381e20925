"""From a training step to a scheduled GPU module, on a machine without a GPU.

The way: `lower` traces the step and writes down what XLA needs to know of it,
`compile_step` runs XLA's GPU compiler on that in a child process, and `Toolchain`
says whether the installed parts of that compiler belong together. A `Compiler` keeps
such processes, and the kernels and steps that they have compiled before.

Names are loaded when they are first used, so that the toolchain can be examined
even where jax itself cannot be imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lagom_jax.later import later

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

__getattr__ = later(
    __name__,
    {
        "CompiledStep": "deviceless",
        "Compiler": "compiler",
        "LoweredStep": "lowering",
        "MemoryUse": "deviceless",
        "ScheduledOrder": "scheduled_order",
        "Store": "store",
        "Target": "deviceless",
        "Toolchain": "toolchain",
        "compile_step": "deviceless",
        "known_flags": "known_options",
        "lower": "lowering",
        "questions_asked": "questions",
        "traced_for": "questions",
    },
)
