"""Operations that the threads of a fused kernel execute.

A fused kernel computes every element of its results from its inputs. What a broadcast
repeats along the innermost dimension is computed anew for each element, or nearly so;
what it repeats along the others is computed once for each line, outside the innermost
loop. `Work.flops` counts either once. Derivation: docs/reference/work.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from lagom_jax.hlo.arithmetic import ARITHMETIC
from lagom_jax.hlo.module import Computation, Instruction, Shape

_IN_PARTS = frozenset({"dynamic-update-slice", "pad", "scatter"})
"""Operations most of whose result may be what it was, or a constant."""


@dataclasses.dataclass(frozen=True, slots=True)
class Executed:
    """Work of a kernel's threads beside moving data."""

    operations: float
    """Operations on single elements. A special function is one."""
    by_columns: bool
    """True if its largest reduction keeps the innermost dimension."""
    strided: int
    """Elements that it writes across the order in which its reduction reads."""


def executed(body: Computation) -> Executed:
    """The operations that the threads of a fused kernel execute.

    Args:
        body: What is fused.
    """
    table = body.instructions
    times: dict[int, float] = {}
    root = body.root
    several = root.opcode == "tuple"
    results = [table[i] for i in root.operand_ids] if several else [root]
    for result in results:
        _need(times, result.id, float(_first(result.shape).element_count))
    operations = 0.0
    largest: Instruction | None = None
    terms = 0.0
    for instruction in reversed(list(table.values())):
        count = times.get(instruction.id)
        if count is None:
            continue
        opcode = instruction.opcode
        if opcode == "reduce":
            arrays = len(instruction.operand_ids) // 2
            source = table[instruction.operand_ids[0]]
            sums = max(1, _first(instruction.shape).element_count)
            count *= source.shape.element_count / sums
            operations += arrays * count
            if count > terms:
                terms, largest = count, instruction
            for operand in instruction.operand_ids[:arrays]:
                _need(times, operand, count)
            continue
        if opcode in ARITHMETIC:
            operations += count
        for operand in instruction.operand_ids:
            _need(times, operand, _repeated(instruction, table[operand], count))
    if largest is None:
        return Executed(operations, by_columns=False, strided=0)
    strided = sum(_strided(result, table) for result in results)
    return Executed(operations, _keeps_lines(largest, table), strided)


def _need(times: dict[int, float], instruction: int, count: float) -> None:
    times[instruction] = max(count, times.get(instruction, 0.0))


def _first(shape: Shape) -> Shape:
    return shape.leaves[0]


def _repeated(instruction: Instruction, operand: Instruction, count: float) -> float:
    """Times that an operand is computed for so many elements of a result."""
    size = operand.shape.element_count
    if size == 1:
        return 1.0
    if instruction.opcode in _IN_PARTS:
        return min(count, size)
    if instruction.opcode == "concatenate":
        return count * size / instruction.shape.element_count
    if instruction.opcode == "broadcast":
        inner = _innermost(instruction)
        if inner not in instruction.proto.dimensions:
            return min(count, count / instruction.shape.dimensions[inner])
    return count


def _innermost(instruction: Instruction) -> int:
    """The dimension along which neighbours in memory lie; lengths of 1 do not count."""
    dimensions = instruction.shape.dimensions
    order = list(instruction.proto.shape.layout.minor_to_major)
    order = order or list(reversed(range(len(dimensions))))
    return next((place for place in order if dimensions[place] > 1), order[0])


def _strided(result: Instruction, table: Mapping[int, Instruction]) -> int:
    """Elements of a result whose neighbours in memory were not computed as such."""
    while result.opcode in ("bitcast", "convert"):
        result = table[result.operand_ids[0]]
    if result.opcode != "transpose" or result.shape.element_count == 1:
        return 0
    source = table[result.operand_ids[0]]
    moved = result.proto.dimensions[_innermost(result)] != _innermost(source)
    return result.shape.element_count if moved else 0


def _keeps_lines(reduce: Instruction, table: Mapping[int, Instruction]) -> bool:
    source = table[reduce.operand_ids[0]]
    if source.shape.element_count <= 1:
        return False
    return _innermost(source) not in reduce.proto.dimensions
