"""Memory traffic and operations of one kernel, from the instructions inside it.

A kernel is walked from its results back to its inputs. Every instruction is asked
for a number of elements and asks its operands for those it needs in turn: a slice of
a large array asks for the slice, a sum over rows asks for the rows. What arrives at
the inputs is what the kernel reads from memory; what lies between stays on the chip.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping

from lagom_jax.hlo.arithmetic import ARITHMETIC, complex_factor
from lagom_jax.hlo.custom_calls import result_shapes
from lagom_jax.hlo.module import Computation, Instruction, Module, Shape
from lagom_jax.hlo.movement import MOVEMENT, Rule, combines, scatter_updates
from lagom_jax.hlo.operations import OPERATIONS, unknown
from lagom_jax.hlo.tally import Tally

_PAIRED_STARTS = ("all-gather-start", "collective-permute-start", "send")
_UPDATES = ("dynamic-update-slice", "scatter")


Demand = Mapping[Hashable, int]
"""Elements asked for at each of several places of an array.

A place is named by how it was reached. Two places with one name are the same place;
places with different names may overlap, so that their sum is an upper bound.
"""

WHOLE: Demand = {None: 0}
"""The demand for all of an array."""


class Walk:
    """One walk from results to inputs through a computation.

    Args:
        module: The module, for called computations.
        table: The instructions of the computation.
        tally: Where operations are counted.
    """

    __slots__ = ("_current", "_parts", "demand", "module", "table", "tally")

    def __init__(
        self, module: Module, table: Mapping[int, Instruction], tally: Tally
    ) -> None:
        self.module = module
        self.table = table
        self.tally = tally
        self.demand: dict[int, Demand] = {}
        """The elements asked for, by instruction."""
        self._current = WHOLE
        self._parts: dict[tuple[int, int], int] = {}

    def ask(self, operand: int, demand: Demand) -> None:
        """Asks for elements at named places of an instruction's result."""
        before = self.demand.get(operand)
        if before is None or demand is WHOLE:
            self.demand[operand] = demand
        elif before is not WHOLE and before is not demand:
            both = dict(before)
            for place, elements in demand.items():
                both[place] = max(elements, both.get(place, 0))
            self.demand[operand] = both

    def need_all(self, operand: int) -> None:
        """Asks for all of an operand."""
        self.demand[operand] = WHOLE

    def need_same(self, operand: int) -> None:
        """Asks an operand for the places that are asked of the current instruction."""
        self.ask(operand, self._current)

    def need_moved(
        self, operand: int, elements: int, count: int, place: Hashable
    ) -> None:
        """Asks an operand for the same elements, which are at another place there."""
        if elements >= count:
            self.need_all(operand)
        else:
            self.need(operand, elements, place)

    def need(self, operand: int, elements: int, place: Hashable) -> None:
        """Asks an operand for elements at a place that only this place's name tells."""
        if self._current is not WHOLE:
            place = (place, *self._current)
        self.ask(operand, {place: elements})

    def run(self, instructions: Iterable[Instruction]) -> None:
        """Hands demands down; users must come before what they use."""
        demands, tally, weights = self.demand, self.tally, ARITHMETIC
        product, ask = math.prod, self.ask
        for instruction in instructions:
            demand = demands.get(instruction.id)
            if demand is None:
                continue
            opcode = instruction.opcode
            count = product(instruction.shape.dimensions)
            if demand is WHOLE:
                elements = count
            else:
                elements = sum(demand.values())
                if elements >= count:
                    elements, demand = count, WHOLE
            weight = weights.get(opcode)
            if weight is None:
                self._current = demand
                RULES.get(opcode, unknown)(self, instruction, elements, count)
                continue
            if instruction.shape.type[0] == "c":
                weight *= complex_factor(opcode)
            tally.flops += weight * elements
            if elements > 1:
                tally.arithmetic = True
            for operand in instruction.operand_ids:
                ask(operand, demand)

    def need_part(self, source: Instruction, index: int, elements: int) -> None:
        """Asks for one array of a tuple."""
        if source.opcode == "parameter":
            key = (source.id, index)
            self._parts[key] = self._parts.get(key, 0) + elements
        else:
            self.need_all(source.id)

    def pass_parts(self, parameter: int, outer: Walk, operand: int) -> None:
        """Asks another walk for what was asked of a parameter that is a tuple."""
        if parameter in self.demand:
            outer.need_all(operand)
        for (source, index), elements in self._parts.items():
            if source == parameter:
                key = (operand, index)
                outer._parts[key] = outer._parts.get(key, 0) + elements

    def bytes_read(self, instruction: Instruction) -> int:
        """Bytes of an input that were asked for, at most all of them."""
        shape = instruction.shape
        if shape.type == "tuple":
            if instruction.id in self.demand:
                return shape.byte_size
            return sum(
                _bytes_of(shape.elements[index], elements)
                for (source, index), elements in self._parts.items()
                if source == instruction.id
            )
        demand = self.demand.get(instruction.id)
        if demand is None:
            return 0
        if demand is WHOLE:
            return shape.byte_size
        return _bytes_of(shape, sum(demand.values()))

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
        self.need_all(root.id)
        if root.opcode == "custom-call":
            kept = [shape.byte_size for shape in result_shapes(root)]
            return kept + [0] * (len(root.shape.leaves) - len(kept))
        if root.opcode == "get-tuple-element":
            return [self._written_part(root)]
        if root.opcode in _PAIRED_STARTS and len(root.shape.elements) > 1:
            return _received(root.shape)
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
                    self.need(ids[0], moved, update.id)
            else:
                moved = self.table[ids[1]].shape.element_count
                for operand in ids[1:]:
                    self.need_all(operand)
            written += _bytes_of(buffer, moved)
        return [min(written, updates[0].shape.byte_size)]


def _received(pair: Shape) -> list[int]:
    """Bytes of what is received; the operands come first, contexts may follow."""
    written: list[int] = []
    for place, part in enumerate(pair.elements):
        written += [leaf.byte_size if place == 1 else 0 for leaf in part.leaves]
    return written


def _bytes_of(shape: Shape, elements: int) -> int:
    count = math.prod(shape.dimensions)
    if elements >= count:
        return shape.byte_size
    return -(-shape.byte_size * elements // count)


def _nested(walk: Walk, instruction: Instruction, elements: int, count: int) -> None:
    for body in walk.module.called(instruction):
        inner = Walk(walk.module, body.instructions, walk.tally)
        if elements >= count:
            inner.need_all(body.root.id)
        else:
            inner.need(body.root.id, elements, instruction.id)
        inner.run(reversed(list(body.instructions.values())))
        hand_over(walk, instruction, body, inner)


def hand_over(
    outer: Walk, instruction: Instruction, body: Computation, inner: Walk
) -> None:
    """Turns demands on a computation's parameters into demands on its operands."""
    for parameter in body.instructions.values():
        if parameter.opcode != "parameter":
            continue
        number: int = parameter.proto.parameter_number
        if number >= len(instruction.operand_ids):
            continue
        operand = instruction.operand_ids[number]
        demand = inner.demand.get(parameter.id)
        if parameter.shape.type == "tuple":
            inner.pass_parts(parameter.id, outer, operand)
        elif demand is WHOLE:
            outer.need_all(operand)
        elif demand:
            # Names of places are made from ids that only this computation knows.
            places: dict[Hashable, int] = {
                (body.id, place): n for place, n in demand.items()
            }
            outer.ask(operand, places)


RULES: dict[str, Rule] = {
    **MOVEMENT,
    **OPERATIONS,
    "call": _nested,
    "fusion": _nested,
}
"""The rule for every opcode that is not elementwise."""
