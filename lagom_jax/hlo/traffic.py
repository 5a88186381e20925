"""What one kernel reads, writes and computes, from the operations inside it.

A kernel is walked from its results back to its inputs. Every instruction is asked
for a number of elements and asks its operands for those it needs in turn: a slice of
a large array asks for the slice, a sum over rows asks for the rows. What arrives at
the inputs is what the kernel reads from memory; what lies between stays on the chip.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from lagom_jax.hlo.arithmetic import ARITHMETIC, complex_factor
from lagom_jax.hlo.custom_calls import result_shapes
from lagom_jax.hlo.module import Computation, Instruction, Module, Shape
from lagom_jax.hlo.movement import MOVEMENT, Rule, combines, scatter_updates
from lagom_jax.hlo.operations import OPERATIONS, unknown
from lagom_jax.hlo.tally import ALL, Tally

_PAIRED_STARTS = ("all-gather-start", "collective-permute-start", "send")
_UPDATES = ("dynamic-update-slice", "scatter")


class Walk:
    """One walk from results to inputs through a computation.

    Args:
        module: The module, for called computations.
        table: The instructions of the computation.
        tally: Where operations are counted.
    """

    __slots__ = ("_parts", "_slices", "demand", "module", "table", "tally")

    def __init__(
        self, module: Module, table: Mapping[int, Instruction], tally: Tally
    ) -> None:
        self.module = module
        self.table = table
        self.tally = tally
        self.demand: dict[int, int] = {}
        """Elements asked for, by instruction."""
        self._slices: dict[tuple[object, ...], int] = {}
        self._parts: dict[tuple[int, int], int] = {}

    def need(self, instruction: int, elements: int) -> None:
        """Asks for elements of an instruction's result."""
        demand = self.demand
        demand[instruction] = demand.get(instruction, 0) + elements

    def run(self, instructions: Iterable[Instruction]) -> None:
        """Hands demands down; users must come before what they use."""
        demand, tally, weights = self.demand, self.tally, ARITHMETIC
        product = math.prod
        for instruction in instructions:
            elements = demand.get(instruction.id, 0)
            if not elements:
                continue
            opcode = instruction.opcode
            count = product(instruction.shape.dimensions)
            if elements > count:
                elements = count
            weight = weights.get(opcode)
            if weight is None:
                RULES.get(opcode, unknown)(self, instruction, elements, count)
                continue
            if instruction.shape.type[0] == "c":
                weight *= complex_factor(opcode)
            tally.flops += weight * elements
            if elements > 1:
                tally.arithmetic = True
            for operand in instruction.operand_ids:
                demand[operand] = demand.get(operand, 0) + elements

    def need_slice(self, operand: int, key: tuple[object, ...], elements: int) -> None:
        """Asks for a slice; the same slice taken twice is read once."""
        before = self._slices.get(key, 0)
        if elements > before:
            self._slices[key] = elements
            self.need(operand, elements - before)

    def need_part(self, source: Instruction, index: int, elements: int) -> None:
        """Asks for one array of a tuple."""
        if source.opcode == "parameter":
            key = (source.id, index)
            self._parts[key] = self._parts.get(key, 0) + elements
        else:
            self.need(source.id, ALL)

    def pass_parts(self, parameter: int, outer: Walk, operand: int) -> None:
        """Asks another walk for what was asked of a parameter that is a tuple."""
        if self.demand.get(parameter):
            outer.need(operand, ALL)
        for (source, index), elements in self._parts.items():
            if source == parameter:
                key = (operand, index)
                outer._parts[key] = outer._parts.get(key, 0) + elements

    def bytes_read(self, instruction: Instruction) -> int:
        """Bytes of an input that were asked for, at most all of them."""
        shape = instruction.shape
        if shape.type == "tuple":
            if self.demand.get(instruction.id):
                return shape.byte_size
            return sum(
                _bytes_of(shape.elements[index], elements)
                for (source, index), elements in self._parts.items()
                if source == instruction.id
            )
        return _bytes_of(shape, self.demand.get(instruction.id, 0))

    def seed(self, root: Instruction, alone: bool) -> list[int]:
        """Asks for a kernel's results.

        Args:
            root: The instruction that gives the results.
            alone: The kernel is this instruction and its operands are its inputs;
                otherwise its inputs are the parameters of its computation.

        Returns:
            The bytes written to each array of the result. An update in place writes
            only what it updates.
        """
        if root.opcode == "tuple" and not alone:
            written: list[int] = []
            for operand in root.operand_ids:
                written.extend(self.seed(self.table[operand], alone))
            return written
        updates = self._updates_in_place(root, alone)
        if updates:
            return self._seed_updates(updates)
        self.need(root.id, ALL)
        if root.opcode == "custom-call":
            kept = [shape.byte_size for shape in result_shapes(root)]
            return kept + [0] * (len(root.shape.leaves) - len(kept))
        if root.opcode == "get-tuple-element":
            return [self._written_part(root)]
        if root.opcode in _PAIRED_STARTS and root.shape.elements:
            # The result begins with the operands, which the operation only reads.
            sent, *others = root.shape.elements
            return [0] * len(sent.leaves) + [
                leaf.byte_size for part in others for leaf in part.leaves
            ]
        if root.shape.type == "tuple":
            return [leaf.byte_size for leaf in root.shape.leaves]
        return [root.shape.byte_size]

    def _written_part(self, root: Instruction) -> int:
        source = self.table[root.operand_ids[0]]
        if source.opcode == "custom-call":
            index: int = root.proto.tuple_index
            if index >= len(result_shapes(source)):
                return 0
        return root.shape.byte_size

    def _updates_in_place(self, root: Instruction, alone: bool) -> list[Instruction]:
        """The updates between a result and the input buffer that it is written to."""
        updates: list[Instruction] = []
        current = root
        while True:
            opcode = current.opcode
            if opcode == "bitcast" and not alone:
                current = self.table[current.operand_ids[0]]
            elif opcode in _UPDATES and current.shape.type != "tuple":
                updates.append(current)
                if alone:
                    return updates
                current = self.table[current.operand_ids[0]]
            else:
                return updates if opcode == "parameter" else []

    def _seed_updates(self, updates: list[Instruction]) -> list[int]:
        written = 0
        for update in updates:
            buffer, ids = update.shape, update.operand_ids
            if update.opcode == "scatter":
                given = self.table[ids[2]].shape
                moved = min(given.element_count, buffer.element_count)
                scatter_updates(self, update)
                if combines(self.module, update):
                    self.need(ids[0], moved)
            else:
                moved = self.table[ids[1]].shape.element_count
                for operand in ids[1:]:
                    self.need(operand, ALL)
            written += _bytes_of(buffer, moved)
        return [min(written, updates[0].shape.byte_size)]


def _bytes_of(shape: Shape, elements: int) -> int:
    count = math.prod(shape.dimensions)
    if elements >= count:
        return shape.byte_size
    return -(-shape.byte_size * elements // count)


def _nested(walk: Walk, instruction: Instruction, elements: int, count: int) -> None:
    for body in walk.module.called(instruction):
        inner = Walk(walk.module, body.instructions, walk.tally)
        inner.need(body.root.id, elements)
        inner.run(reversed(list(body.instructions.values())))
        hand_over(walk, instruction, body, inner)


def hand_over(
    outer: Walk, instruction: Instruction, body: Computation, inner: Walk
) -> None:
    """Turns demands on a computation's parameters into demands on its operands."""
    for parameter in body.instructions.values():
        if parameter.opcode == "parameter":
            number: int = parameter.proto.parameter_number
            if number >= len(instruction.operand_ids):
                continue
            operand = instruction.operand_ids[number]
            if parameter.shape.type == "tuple":
                inner.pass_parts(parameter.id, outer, operand)
            elif elements := inner.demand.get(parameter.id, 0):
                outer.need(operand, min(elements, parameter.shape.element_count))


RULES: dict[str, Rule] = {
    **MOVEMENT,
    **OPERATIONS,
    "call": _nested,
    "fusion": _nested,
}
"""What to do with every opcode that is not elementwise."""
