"""Buffers of a computation: instructions that touch the same memory.

XLA writes some results over an operand: a dynamic-update-slice, a scatter, a loop's
carried values, a matmul that adds to what is there. Before it schedules it copies what
must survive; afterwards it takes copies away that the order made needless. A result
that is written over its operand must therefore stay behind whoever still reads what
was there, even where no operand says so.

Here every array gets a buffer: arrays that may have to share one share it. Where that
is not known they share, which only keeps instructions in their places.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from lagom_jax.hlo.module import Computation, Instruction, Module, Shape
from lagom_jax.program.build import loop_body

# These hand their operands on and touch no memory.
_SAME_AS_OPERAND = frozenset({"bitcast", "opt-barrier", "add-dependency", "domain"})
_NO_ACCESS = _SAME_AS_OPERAND | {"tuple", "get-tuple-element"}
_IN_PLACE = frozenset({"dynamic-update-slice", "scatter"})
_CALLERS = frozenset({"conditional", "call"})


@dataclasses.dataclass(frozen=True, slots=True)
class Access:
    """The buffers that an instruction reads and writes."""

    reads: frozenset[int]
    writes: frozenset[int]


@dataclasses.dataclass(frozen=True, slots=True)
class Buffers:
    """The buffers of one computation's arrays."""

    accesses: tuple[Access, ...]
    """Of each instruction of the sequence, in its order."""
    sizes: dict[int, int]
    """Bytes of each buffer that the computation itself needs; parameters, and what
    shares memory with them, belong to the caller."""
    results: frozenset[int]
    """Buffers that are read when the computation is over."""


def buffers_of(module: Module, computation: Computation) -> Buffers:
    """Finds the buffers of a computation that has a sequence."""
    return _Reader(module, computation).read()


class _Sets:
    """Numbers that can be made equal."""

    def __init__(self) -> None:
        self._leader: list[int] = []

    def new(self) -> int:
        self._leader.append(len(self._leader))
        return len(self._leader) - 1

    def find(self, member: int) -> int:
        leader = self._leader
        while leader[member] != member:
            leader[member] = leader[leader[member]]
            member = leader[member]
        return member

    def unite(self, one: int, other: int) -> None:
        one, other = sorted((self.find(one), self.find(other)))
        self._leader[other] = one


class _Reader:
    def __init__(self, module: Module, computation: Computation) -> None:
        self._module, self._computation = module, computation
        self._sets = _Sets()
        self._leaves: dict[int, list[int]] = {}
        self._sizes: dict[int, int] = {}

    def read(self) -> Buffers:
        sequence = self._computation.sequence
        assert sequence is not None
        for instruction in sequence:
            self._leaves[instruction.id] = self._result(instruction)
        root = self._leaves[self._computation.root.id]
        borrowed = {
            leaf
            for i in sequence
            if i.opcode == "parameter"
            for leaf in self._leaves[i.id]
        }
        for one, other in self._carried():
            self._sets.unite(one, other)
        find = self._sets.find
        accesses = tuple(self._access(instruction) for instruction in sequence)
        outside = {find(leaf) for leaf in borrowed}
        sizes: defaultdict[int, int] = defaultdict(int)
        for leaf, size in self._sizes.items():
            if find(leaf) not in outside:
                sizes[find(leaf)] = max(sizes[find(leaf)], size)
        return Buffers(accesses, dict(sizes), frozenset(map(find, root)))

    def _fresh(self, shape: Shape) -> list[int]:
        found: list[int] = []
        for leaf in shape.leaves:
            number = self._sets.new()
            self._sizes[number] = leaf.byte_size
            found.append(number)
        return found

    def _of_operands(self, instruction: Instruction) -> list[int]:
        return [leaf for i in instruction.operand_ids for leaf in self._leaves[i]]

    def _result(self, instruction: Instruction) -> list[int]:
        opcode = instruction.opcode
        shape = instruction.shape
        operands = self._of_operands(instruction)
        count = len(shape.leaves)
        if opcode == "get-tuple-element":
            source = self._computation.instructions[instruction.operand_ids[0]]
            first = _offset(source.shape, [int(instruction.proto.tuple_index)])
            return self._leaves[source.id][first : first + count]
        if opcode == "tuple" or opcode == "while":
            return operands[:count]
        if opcode in _SAME_AS_OPERAND and len(operands) >= count:
            return operands[:count]
        if opcode.endswith(("-done", "-update")):
            return self._of_start(operands, instruction)
        fresh = self._fresh(shape)
        starts = opcode.endswith("-start") or opcode in ("send", "recv")
        if starts and count > len(operands) and self._fits(operands, fresh):
            # A start's result names its operands first.
            fresh[: len(operands)] = operands
        if opcode in _IN_PLACE:
            for number, leaf in enumerate(fresh):
                self._sets.unite(leaf, operands[number])
        elif opcode in _CALLERS or self._updates_in_place(instruction):
            self._unite_alike(operands, fresh)
        for alias in instruction.proto.output_operand_aliasing:
            source = self._computation.instructions[
                instruction.operand_ids[alias.operand_index]
            ]
            one = fresh[_offset(shape, alias.output_shape_index)]
            of_source = self._leaves[source.id]
            other = of_source[_offset(source.shape, alias.operand_shape_index)]
            self._sets.unite(one, other)
        return fresh

    def _fits(self, some: Sequence[int], others: Sequence[int]) -> bool:
        sizes = self._sizes
        return all(sizes[a] == sizes[b] for a, b in zip(some, others, strict=False))

    def _of_start(self, start: list[int], done: Instruction) -> list[int]:
        """The part of a start's result that its done hands on."""
        fresh = self._fresh(done.shape)
        source = self._computation.instructions[done.operand_ids[0]]
        skipped = len(self._of_operands(source))
        for first in (skipped, 0):
            part = start[first : first + len(fresh)]
            if len(part) == len(fresh) and self._fits(part, fresh):
                return part
        self._unite_alike(start, fresh)
        return fresh

    def _unite_alike(self, some: list[int], others: list[int]) -> None:
        for one in some:
            for other in others:
                if self._sizes[one] == self._sizes[other]:
                    self._sets.unite(one, other)

    def _updates_in_place(self, instruction: Instruction) -> bool:
        if instruction.opcode not in ("fusion", "async-start"):
            return False
        return any(
            inner.opcode in _IN_PLACE
            for called in self._module.called(instruction)
            for inner in called.instructions.values()
        )

    def _carried(self) -> Iterator[tuple[int, int]]:
        """Results that are written where a parameter was."""
        module, computation = self._module, self._computation
        root = self._leaves[computation.root.id]
        parameters = {
            int(i.proto.parameter_number): i
            for i in computation.instructions.values()
            if i.opcode == "parameter"
        }
        if computation is module.entry:
            for alias in module.proto.input_output_alias.entries:
                parameter = parameters[alias.parameter_number]
                first = _offset(parameter.shape, alias.parameter_shape_index)
                output = _offset(computation.root.shape, alias.output_shape_index)
                yield root[output], self._leaves[parameter.id][first]
        elif len(parameters) == 1:
            # Of a loop's body; of a branch it does no harm.
            (parameter,) = parameters.values()
            carried = self._leaves.get(parameter.id, [])
            if len(carried) == len(root) and self._fits(carried, root):
                yield from zip(root, carried, strict=True)

    def _access(self, instruction: Instruction) -> Access:
        opcode = instruction.opcode
        find = self._sets.find
        if opcode in _NO_ACCESS:
            root = instruction is self._computation.root
            leaves = self._leaves[instruction.id] if root else []
            return Access(frozenset(map(find, leaves)), frozenset())
        reads = set(map(find, self._of_operands(instruction)))
        results = self._leaves[instruction.id]
        if opcode == "while":
            changed = self._changed(instruction)
            writes = {find(leaf) for n, leaf in enumerate(results) if n in changed}
        elif opcode in _CALLERS:
            writes = reads | set(map(find, results))
        else:
            passed = set(self._of_operands(instruction))
            writes = {find(leaf) for leaf in results if leaf not in passed}
        if opcode.endswith(("-done", "-update")):
            # What was launched reads and writes until here.
            source = self._computation.instructions[instruction.operand_ids[0]]
            reads |= set(map(find, self._of_operands(source)))
            writes |= set(map(find, results))
        return Access(frozenset(reads), frozenset(writes))

    def _changed(self, loop: Instruction) -> frozenset[int]:
        """The values of a loop that its body does not hand on as they came."""
        body = loop_body(self._module, loop)
        root = body.root
        every = frozenset(range(len(loop.shape.leaves)))
        if root.opcode != "tuple" or len(root.operand_ids) != len(every):
            return every
        kept: set[int] = set()
        for number, operand in enumerate(body.operands(root)):
            if operand.opcode == "get-tuple-element":
                (source,) = body.operands(operand)
                same = int(operand.proto.tuple_index) == number
                if source.opcode == "parameter" and same:
                    kept.add(number)
        return every - kept


def _offset(shape: Shape, path: Iterable[Any]) -> int:
    """The place of the first leaf under a path among all leaves."""
    first = 0
    for step in path:
        first += sum(len(part.leaves) for part in shape.elements[: int(step)])
        shape = shape.elements[int(step)]
    return first
