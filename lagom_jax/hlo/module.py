"""Types of a compiled program: a module, its computations, its instructions.

The types here are what every later room works with. They hold what the analysis
needs of each instruction; everything that only some opcodes have stays in the
compiler's own message and is read through `Instruction.proto` by the one function
that needs it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from lagom_jax.hlo.stated_kernels import StatedKernel
from lagom_jax.hlo.symmetric_buffers import SymmetricBuffers


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """An array's element type and dimensions, or a tuple of shapes.

    Example:
        >>> Shape("bf16", (2048, 4096), 2 * 2048 * 4096).byte_size
        16777216
    """

    type: str
    """Element type as HLO text spells it (`bf16`, `f8e4m3fn`), `tuple`, `token`, ..."""
    dimensions: tuple[int, ...]
    byte_size: int
    """Bytes of all leaves; element types below a byte are packed."""
    elements: tuple[Shape, ...] = ()
    """The parts of a tuple; empty for an array."""

    @property
    def leaves(self) -> tuple[Shape, ...]:
        """The arrays in this shape, tuples taken apart."""
        if self.type != "tuple":
            return (self,)
        return tuple(leaf for part in self.elements for leaf in part.leaves)

    @property
    def element_count(self) -> int:
        """The number of elements in an array of this shape; 1 for a scalar."""
        count = 1
        for dimension in self.dimensions:
            count *= dimension
        return count


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Instruction:
    """One instruction, by identity: two are equal only if they are the same one."""

    id: int
    name: str
    opcode: str
    shape: Shape
    operand_ids: Sequence[int]
    """Ids of instructions of the same computation."""
    called_ids: Sequence[int]
    """Ids of the computations that this instruction calls, in the proto's order."""
    proto: Any
    """The compiler's own HloInstructionProto, for what only some opcodes have."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Computation:
    """A list of instructions in schedule order where there is a schedule."""

    id: int
    name: str
    instructions: Mapping[int, Instruction]
    """By id; operands come before their users."""
    root: Instruction
    sequence: Sequence[Instruction] | None
    """The order the compiler scheduled; None in a computation it did not schedule
    (the inside of a fusion, a reduction's scalar function)."""

    def operands(self, instruction: Instruction) -> list[Instruction]:
        """The instructions whose results `instruction` reads, in operand order."""
        table = self.instructions
        return [table[i] for i in instruction.operand_ids]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Module:
    """One device's compiled program."""

    name: str
    computations: Mapping[int, Computation]
    entry: Computation
    replicas: int
    partitions: int
    proto: Any
    """The compiler's own HloModuleProto."""
    placement: Sequence[int] = ()
    """The device of partition p of replica r, at place r × partitions + p; devices
    are counted in the order of their ids. Empty where the module does not say."""
    callers: Mapping[int, Instruction] = dataclasses.field(
        default_factory=dict[int, Instruction]
    )
    """The first instruction that calls a computation, by the computation's id."""
    stated: Sequence[StatedKernel] = ()
    """The user's statements about kernels that nothing else is known of."""
    placed: Mapping[str, SymmetricBuffers] = dataclasses.field(
        default_factory=dict[str, SymmetricBuffers]
    )
    """By name of a collective, as it is scheduled, what will lie in symmetric memory,
    where XLA has yet to place it; of others the instructions say."""

    def called(self, instruction: Instruction) -> list[Computation]:
        """The computations that `instruction` calls."""
        return [self.computations[i] for i in instruction.called_ids]

    def caller(self, instruction: Instruction) -> Instruction | None:
        """An instruction that runs the computation in which `instruction` is.

        None in the entry computation, and where ids do not tell the computation, as in
        modules from before XLA counted instructions anew in each.
        """
        place = self.computations.get(instruction.id >> 32)
        if place is None or instruction.id not in place.instructions:
            return None
        return self.callers.get(place.id)

    @property
    def scheduled(self) -> list[Computation]:
        """The computations that have a sequence; orders count them by their places."""
        return [c for c in self.computations.values() if c.sequence is not None]

    @property
    def devices(self) -> int:
        """The number of devices that run this program together."""
        return self.replicas * self.partitions

    @property
    def instruction_count(self) -> int:
        """Instructions in all computations."""
        return sum(len(c.instructions) for c in self.computations.values())
