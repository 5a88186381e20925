"""Collectives: what moves, between whom, and how the compiler runs it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from lagom_jax.compile.schema import STREAM_ATTRIBUTE
from lagom_jax.hlo.config import (
    backend_config,
    frontend_attributes,
    library_line,
    op_name,
    section,
    source_lines,
)
from lagom_jax.hlo.groups import (
    Groups,
    pairs_from_text,
    permute_pairs,
    replica_groups,
)
from lagom_jax.hlo.kinds import KINDS
from lagom_jax.hlo.module import Computation, Instruction, Module
from lagom_jax.hlo.provenance import described_by
from lagom_jax.hlo.symmetric_buffers import SymmetricBuffers
from lagom_jax.hlo.symmetric_memory import (
    is_one_sided,
    receives_symmetric,
    sends_symmetric,
)


def plain_name(name: str) -> str:
    """A collective's name without what the schedule adds to it.

    Example:
        >>> plain_name("all-gather-start.3")
        'all-gather.3'
    """
    return name.replace("-start", "")


# The compiler's enum CollectiveKernelStrategy as JSON and binary configs spell it.
_OWN_KERNELS = {
    "KERNEL_STRATEGY_TRITON_ONE_SHOT",
    "KERNEL_STRATEGY_TRITON_TWO_SHOT",
    1,
    2,
}
_PAIRS_ATTRIBUTE = "_xla_send_recv_source_target_pairs"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Collective:
    """One collective of a module.

    A combined collective (several operands, one launch) is one Collective; its bytes
    are the sums over its operands.
    """

    kind: str
    name: str
    operands: tuple[tuple[str, int], ...]
    """Element type and bytes of every array that is sent; none for a `recv`."""
    result_bytes: int
    groups: Groups
    channel_id: int
    is_sync: bool
    """The compiler runs it on the compute stream: nothing can hide it."""
    is_pipelined: bool
    one_shot_kernel: bool
    """A small all-reduce that XLA runs as a kernel of its own instead of NCCL."""
    op_name: str
    source: str
    """`file:line` of the user's code; empty where the compiler dropped it."""
    stream: int = 0
    """The number of XLA's stream for communication that it runs on, if it is not on
    the compute stream."""
    instruction: Instruction | None = None
    """Its instruction in the schedule; None for a collective made by hand."""
    computation: Computation | None = None
    """The computation of that instruction."""
    sends_symmetric: bool = False
    """True if its operands lie in memory that all its GPUs have registered together."""
    receives_symmetric: bool = False
    """True if its results do."""
    one_sided: bool = False
    """XLA runs it by puts into that memory, where it can, not by NCCL's collective."""
    library: str = ""
    """`file:line` of the library that made it for the user; empty without one."""
    callers: tuple[str, ...] = ()
    """The user's calls that lead to `source`, the nearest first."""

    @property
    def operand_bytes(self) -> int:
        """Bytes that are sent."""
        return sum(nbytes for _, nbytes in self.operands)

    @property
    def operand_count(self) -> int:
        """Arrays that the compiler combined."""
        return len(self.operands)

    @property
    def communicator(self) -> bytes | None:
        """NCCL's communicator, which runs its collectives in turn, whatever the stream.

        None for a kernel of XLA's own, which has none, and for exchanges in pairs,
        of which it is not known.
        """
        if self.one_shot_kernel or self.groups.point_to_point:
            return None
        return self.groups.communicator

    @property
    def element_types(self) -> tuple[str, ...]:
        """Their types, each once."""
        return tuple(dict.fromkeys(kind for kind, _ in self.operands))

    @property
    def bytes(self) -> int:
        """Bytes on the larger side: gathered output, scattered input, or operand."""
        return max(self.operand_bytes, self.result_bytes)


def collective_kind(opcode: str) -> str | None:
    """The kind of collective that an opcode launches or runs, or None.

    Example:
        >>> collective_kind("all-gather-start"), collective_kind("reduce-scatter")
        ('all-gather', 'reduce-scatter')
        >>> collective_kind("all-gather-done") is None
        True
    """
    kind = opcode.removesuffix("-start")
    return kind if kind in KINDS else None


def read_collective(
    module: Module,
    computation: Computation,
    instruction: Instruction,
    *,
    launcher: tuple[Computation, Instruction] | None = None,
) -> Collective:
    """Reads a collective.

    Args:
        module: The module it is in.
        computation: The computation that holds `instruction`.
        instruction: The collective itself: `all-gather`, `all-gather-start`, `send`.
        launcher: The `async-start` or fusion around it, where there is one, and the
            computation that holds that; its name is the one in the schedule.
    """
    kind = collective_kind(instruction.opcode)
    if kind is None:
        raise ValueError(f"{instruction.opcode} is not a collective")
    place, outer = launcher or (computation, instruction)
    settings = section(backend_config(outer), "collective_backend_config")
    if launcher is not None and "is_sync" not in settings:
        settings = section(backend_config(instruction), "collective_backend_config")
    operands = _moved_operands(computation, instruction, kind)
    operand_bytes = sum(operand.shape.byte_size for operand in operands)
    described = described_by(module, place, outer)
    lines = source_lines(module, described)
    symmetric = module.placed.get(outer.name) or SymmetricBuffers(
        sends_symmetric(operands),
        receives_symmetric(instruction, kind),
        is_one_sided(settings),
    )
    return Collective(
        kind=kind,
        name=outer.name,
        operands=tuple(
            (operand.shape.leaves[0].type, operand.shape.byte_size)
            for operand in operands
        ),
        result_bytes=_result_bytes(instruction, kind, operand_bytes),
        groups=_groups(module, instruction, kind).placed(module.placement),
        channel_id=instruction.proto.channel_id,
        is_sync=bool(settings.get("is_sync", False))
        or (launcher is None and not _is_split(instruction.opcode)),
        is_pipelined=bool(settings.get("is_pipelined", False)),
        one_shot_kernel=_is_one_shot(outer, settings),
        op_name=op_name(described),
        source=lines[0] if lines else "",
        callers=lines[1:],
        library=library_line(module, described),
        stream=_stream(outer),
        instruction=outer,
        computation=place,
        sends_symmetric=symmetric.sent,
        receives_symmetric=symmetric.received,
        one_sided=symmetric.one_sided,
    )


def _stream(outer: Instruction) -> int:
    # Whoever leaves the choice to XLA writes a word there.
    named = frontend_attributes(outer).get(STREAM_ATTRIBUTE, "")
    return int(named) if named.isascii() and named.isdigit() else 0


def _is_one_shot(outer: Instruction, settings: Mapping[str, Any]) -> bool:
    if outer.opcode == "fusion":
        kind = section(backend_config(outer), "fusion_backend_config").get("kind")
        return kind == "__triton_collective"
    return settings.get("kernel_strategy") in _OWN_KERNELS


def _is_split(opcode: str) -> bool:
    return opcode.endswith("-start") or opcode in ("send", "recv")


def _moved_operands(
    computation: Computation, instruction: Instruction, kind: str
) -> list[Instruction]:
    operands = computation.operands(instruction)
    if kind == "recv":
        return []
    if kind == "send":
        return operands[:1]
    if kind == "ragged-all-to-all":
        # The others are the output buffer and four vectors of offsets and sizes.
        return operands[:1]
    if kind == "collective-permute" and len(operands) == 4:
        # The in-place form: input, output, and where in each.
        return operands[:1]
    return operands


def _result_bytes(instruction: Instruction, kind: str, operand_bytes: int) -> int:
    shape = instruction.shape
    if kind == "send":
        return operand_bytes
    if kind == "recv":
        # (data, context, token)
        return shape.elements[0].byte_size if shape.elements else shape.byte_size
    if instruction.opcode in ("all-gather-start", "collective-permute-start"):
        # (operands, results) and, for a permute, contexts of a few bytes.
        return shape.elements[1].byte_size
    return shape.byte_size


def _groups(module: Module, instruction: Instruction, kind: str) -> Groups:
    if kind == "collective-permute":
        return permute_pairs(instruction)
    if kind in ("send", "recv"):
        return pairs_from_text(
            frontend_attributes(instruction).get(_PAIRS_ATTRIBUTE, "")
        )
    return replica_groups(module, instruction, kind)
