"""Work per instruction: what a kernel computes and which bytes it moves."""

from __future__ import annotations

import dataclasses
from typing import Any

from lagom_jax.hlo.custom_calls import HOST_CALLBACKS, is_silent
from lagom_jax.hlo.executed import executed
from lagom_jax.hlo.matmul import Matmul
from lagom_jax.hlo.module import Computation, Instruction, Module
from lagom_jax.hlo.movement import transposes
from lagom_jax.hlo.stated_kernels import stated_for
from lagom_jax.hlo.tally import HEROES, Tally
from lagom_jax.hlo.traffic import Walk, hand_over

KINDS = frozenset({*HEROES, "host-copy", "stated", "nothing"})
"""The kinds of kernels.

- `matmul`: a matrix product, whoever computes it, with what is fused to it
- `attention`: a fused attention kernel
- `convolution`: a convolution or one of its gradients
- `collective`: communication; its bytes here are those on this device
- `solve`: a triangular solve or a factorisation
- `sort`: sorting, or the largest few
- `scatter`, `gather`: rows at places that are data
- `fft`: a Fourier transform
- `custom`: a call that nothing is known about but its operands and results
- `reduction`: sums over dimensions, windows or running; norms; softmax
- `transpose`: data in another order
- `fusion`: arithmetic element by element
- `copy`: data moved or filled in without arithmetic
- `host-copy`: data moved between GPU and host memory
- `stated`: a call whose time or work the user states
- `nothing`: no kernel
"""

HOST_MEMORY_SPACE = 5

_SILENT = frozenset(
    {
        "add-dependency",
        "after-all",
        "async-done",
        "async-start",
        "async-update",
        "bitcast",
        "call",
        "conditional",
        "constant",
        "copy-done",
        "domain",
        "get-dimension-size",
        "get-tuple-element",
        "opt-barrier",
        "parameter",
        "partition-id",
        "recv-done",
        "replica-id",
        "send-done",
        "set-dimension-size",
        "tuple",
        "while",
    }
)
_HOST_TRANSFERS = frozenset({"infeed", "outfeed"})
_MOVES = frozenset({"copy", "copy-start"})
# A single number is computed, not moved, even if it is only an index.
_SCALAR_BYTES = 16


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """Operations and bytes of one kernel when it runs alone.

    Bytes are those that must move: every input element that is needed once, every
    result once. Caches that are too small to keep an operand can make it more.

    Example:
        >>> work = Work("copy", 0.0, bytes_read=1 << 20, bytes_written=1 << 20)
        >>> work.hbm_bytes
        2097152
    """

    kind: str
    """One of `KINDS`."""
    flops: float
    """Arithmetic operations; a special function counts `SPECIAL_OPERATIONS`."""
    bytes_read: int
    """Bytes read from the GPU's memory."""
    bytes_written: int
    """Bytes written to the GPU's memory."""
    matmuls: tuple[Matmul, ...] = ()
    """The matrix products among the operations."""
    host_bytes: int = 0
    """Bytes that cross between GPU and host memory."""
    target: str = ""
    """The custom call's target, so that a report can name what it does not know."""
    stated_seconds: float | None = None
    """The time of one execution, where the user states it."""
    executed: float | None = None
    """Operations of a fused kernel's threads, those of matrix products apart, with
    what is computed more than once; None for as many as `flops` says."""
    by_columns: bool = False
    """True for a reduction that keeps the innermost dimension."""
    strided: int = 0
    """Elements that a reduction writes beside its sums, and not as it reads them."""

    @property
    def hbm_bytes(self) -> int:
        """Bytes read from and written to the GPU's memory."""
        return self.bytes_read + self.bytes_written


NOTHING = Work("nothing", 0.0, 0, 0)
"""The work of an instruction that launches no kernel."""


def launches_kernel(instruction: Instruction) -> bool:
    """True if an instruction makes the GPU do something of its own.

    Names for data, control flow and the ends of asynchronous operations do not; what
    a loop, a branch, a call or an asynchronous start runs are the instructions of the
    computation it calls.
    """
    opcode = instruction.opcode
    if opcode in _SILENT or opcode.endswith("-done"):
        return False
    if opcode == "custom-call":
        return not is_silent(instruction.proto.custom_call_target)
    return True


def work(module: Module, computation: Computation, instruction: Instruction) -> Work:
    """The operations and bytes of an instruction.

    Args:
        module: The module that the instruction is part of.
        computation: The computation that the instruction is part of.
        instruction: Any instruction of it.

    Returns:
        The work of the kernel that the instruction launches, or `NOTHING`.
    """
    if not launches_kernel(instruction):
        return NOTHING
    found = _work(module, computation, instruction)
    if module.stated and instruction.opcode == "custom-call":
        target: str = instruction.proto.custom_call_target
        stated = stated_for(module.stated, target)
        if stated is not None:
            return dataclasses.replace(stated.applied(found), target=target)
    return found


def _work(module: Module, computation: Computation, instruction: Instruction) -> Work:
    if instruction.opcode in _MOVES:
        return _move(computation, instruction)
    if _talks_to_host(instruction):
        return _host_transfer(computation, instruction)
    tally = Tally()
    outer = Walk(module, computation.instructions, tally)
    does = None
    if instruction.opcode == "fusion":
        (body,) = module.called(instruction)
        does = executed(body)
        inner = Walk(module, body.instructions, tally)
        written = inner.seed(body.root, alone=False)
        inner.run(reversed(list(body.instructions.values())))
        hand_over(outer, instruction, body, inner)
    else:
        written = outer.seed(instruction, alone=True)
        outer.run((instruction,))
        outer.demand.pop(instruction.id, None)
    read, from_host = _bytes_read(outer, instruction)
    wrote, to_host = _bytes_written(instruction, written)
    return Work(
        _kind(tally, sum(written), from_host + to_host),
        tally.flops,
        read + tally.extra_read,
        wrote + tally.extra_written,
        tuple(tally.matmuls),
        from_host + to_host,
        tally.target,
        executed=does.operations if does else None,
        by_columns=does is not None and does.by_columns,
        strided=does.strided if does else 0,
    )


def _kind(tally: Tally, written: int, host: int) -> str:
    if tally.kind:
        return tally.kind
    if tally.arithmetic or (tally.flops and written <= _SCALAR_BYTES):
        return "fusion"
    return "host-copy" if host else "copy"


def _on_host(shape: Any) -> bool:
    return shape.layout.memory_space == HOST_MEMORY_SPACE


def _bytes_read(walk: Walk, instruction: Instruction) -> tuple[int, int]:
    """Bytes read from the GPU's memory and from the host's."""
    device = host = 0
    for operand_id in set(instruction.operand_ids):
        operand = walk.table[operand_id]
        amount = walk.bytes_read(operand)
        if _on_host(operand.proto.shape):
            host += amount
        else:
            device += amount
    return device, host


def _bytes_written(instruction: Instruction, written: list[int]) -> tuple[int, int]:
    """Bytes written to the GPU's memory and to the host's."""
    shape = instruction.proto.shape
    if len(written) == 1:
        return (0, written[0]) if _on_host(shape) else (written[0], 0)
    leaves = list(_leaves(shape))
    host = sum(
        amount for amount, leaf in zip(written, leaves, strict=False) if _on_host(leaf)
    )
    return sum(written) - host, host


def _leaves(shape: Any) -> Any:
    for part in shape.tuple_shapes:
        if part.tuple_shapes:
            yield from _leaves(part)
        else:
            yield part


def _move(computation: Computation, instruction: Instruction) -> Work:
    """A copy, or the start of one, whose result comes first in a tuple."""
    source = computation.instructions[instruction.operand_ids[0]]
    size = source.shape.byte_size
    target = instruction.proto.shape
    if instruction.opcode == "copy-start":
        target = target.tuple_shapes[0] if target.tuple_shapes else target
    from_host, to_host = _on_host(source.proto.shape), _on_host(target)
    if from_host or to_host:
        read = 0 if from_host else size
        return Work("host-copy", 0.0, read, 0 if to_host else size, (), size)
    changed = instruction.opcode == "copy" and transposes(instruction, source)
    return Work("transpose" if changed else "copy", 0.0, size, size)


def _talks_to_host(instruction: Instruction) -> bool:
    if instruction.opcode == "custom-call":
        return instruction.proto.custom_call_target in HOST_CALLBACKS
    return instruction.opcode in _HOST_TRANSFERS


def _host_transfer(computation: Computation, instruction: Instruction) -> Work:
    target: str = instruction.proto.custom_call_target
    sent = sum(o.shape.byte_size for o in computation.operands(instruction))
    # What an outfeed returns is a token.
    received = instruction.shape.byte_size if instruction.opcode != "outfeed" else 0
    return Work("host-copy", 0.0, sent, received, (), sent + received, target)
