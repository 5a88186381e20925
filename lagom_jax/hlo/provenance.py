"""Origin of an instruction in the source, and the platform of a module."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from lagom_jax.hlo.config import op_name, source_frames
from lagom_jax.hlo.module import Computation, Instruction, Module

# How many neighbours are asked before an origin is given up.
_ASKED = 64
_GPU_SETTINGS = (b"operation_queue_id", b"collective_backend_config", b"is_sync")
_GPU_CALLS = ("__cu", "__triton", "__gpu$", "mosaic_gpu", "cublas", "cudnn")


def described_by(
    module: Module, computation: Computation, instruction: Instruction
) -> Instruction:
    """The instruction whose metadata say best where another came from.

    The partitioner and the combiners of some versions drop the metadata of what they
    insert or merge. Then the nearest producer that has some is the nearest truth, and
    after the producers the nearest user.

    Args:
        module: The module of both.
        computation: The computation that `instruction` is in.
        instruction: The one to ask about; it is the answer if nobody knows.
    """
    for candidate in _neighbours(module, computation, instruction):
        if op_name(candidate) or source_frames(module, candidate):
            return candidate
    return instruction


def _neighbours(
    module: Module, computation: Computation, instruction: Instruction
) -> Iterator[Instruction]:
    """The instruction, its producers by distance, then its users by distance."""
    yield instruction
    asked = 0
    waiting = deque(computation.operands(instruction))
    while waiting and asked < _ASKED:
        producer = waiting.popleft()
        asked += 1
        yield producer
        for called in module.called(producer):
            yield called.root
        waiting.extend(computation.operands(producer))
    found = {instruction.id}
    for user in computation.instructions.values():
        if found.intersection(user.operand_ids):
            found.add(user.id)
            yield user
            if len(found) > _ASKED:
                return


def compiled_for_gpu(module: Module) -> bool:
    """True if something in a module shows that XLA's GPU compiler made it.

    A program for the CPU is scheduled too and has the same collectives, all of them
    synchronous; what it says about overlaps holds for no GPU.
    """
    for computation in module.computations.values():
        for instruction in computation.instructions.values():
            proto = instruction.proto
            settings = proto.backend_config
            if settings and any(word in settings for word in _GPU_SETTINGS):
                return True
            if proto.HasField("backend_config_payload"):
                return True
            if proto.custom_call_target.startswith(_GPU_CALLS):
                return True
            if instruction.opcode.endswith("-start"):
                return True
    return False
