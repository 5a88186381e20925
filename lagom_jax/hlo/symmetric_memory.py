"""Symmetric memory: buffers that all GPUs of a collective have registered together.

XLA gives them a memory space of their own, S(1), outside of the ordinary pool. NCCL
calls them windows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from lagom_jax.hlo.module import Instruction, Module

_SPACES: Final = (1, 7)
"""Memory spaces of XLA for them, the older number and the newer one."""
# The compiler's enum CollectivesMode, as JSON and binary configs spell it.
_ONE_SIDED: Final = ("COLLECTIVES_SYMMETRIC_MEMORY", 2)
# (operands, results) and, for a permute, contexts of a few bytes.
_STARTS: Final = ("all-gather-start", "collective-permute-start")


def is_symmetric(shape: Any) -> bool:
    """True if an array, or every array of a tuple, lies in symmetric memory.

    Args:
        shape: The compiler's own message.
    """
    if shape.tuple_shapes:
        return all(map(is_symmetric, shape.tuple_shapes))
    return shape.layout.memory_space in _SPACES


def sends_symmetric(operands: Sequence[Instruction]) -> bool:
    """True if all that is sent lies in symmetric memory."""
    return bool(operands) and all(is_symmetric(one.proto.shape) for one in operands)


def receives_symmetric(instruction: Instruction, kind: str) -> bool:
    """True if all that a collective receives lies in symmetric memory.

    Args:
        instruction: The collective itself.
        kind: Its kind.
    """
    shape = instruction.proto.shape
    if instruction.opcode in _STARTS:
        shape = shape.tuple_shapes[1]
    elif kind == "recv" and shape.tuple_shapes:
        shape = shape.tuple_shapes[0]
    return is_symmetric(shape)


def is_one_sided(settings: Mapping[str, Any]) -> bool:
    """True if XLA is to run a collective by puts of its own.

    Args:
        settings: Its `collective_backend_config`.

    Example:
        >>> is_one_sided({"collectives_mode": "COLLECTIVES_SYMMETRIC_MEMORY"})
        True
    """
    return settings.get("collectives_mode") in _ONE_SIDED


def uses_symmetric_memory(module: Module) -> bool:
    """True if anything in a module lies in symmetric memory."""
    return any(
        leaf
        for computation in module.computations.values()
        for instruction in computation.instructions.values()
        for leaf in _leaves_that_are_symmetric(instruction.proto.shape)
    )


def _leaves_that_are_symmetric(shape: Any) -> Sequence[bool]:
    if shape.tuple_shapes:
        return [any(_leaves_that_are_symmetric(part)) for part in shape.tuple_shapes]
    return [shape.layout.memory_space in _SPACES]
