"""Operations that move data: which part of their operands a part of them needs.

A rule gets a walk, an instruction, how many elements of its result are needed and how
many it has; it asks the walk for elements of the operands and names the place that
they are at, so that what is needed twice from one place is read once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lagom_jax.hlo.arithmetic import scalar_flops
from lagom_jax.hlo.module import Instruction, Module
from lagom_jax.hlo.tally import share

if TYPE_CHECKING:
    from lagom_jax.hlo.traffic import Walk

Rule = Callable[["Walk", Instruction, int, int], None]


def everything(walk: Walk, instruction: Instruction, elements: int, count: int) -> None:
    """The rule of what needs all of its operands, whatever is needed of it."""
    for operand in instruction.operand_ids:
        walk.need_all(operand)


def _nothing(walk: Walk, instruction: Instruction, elements: int, count: int) -> None:
    pass


def _same(walk: Walk, instruction: Instruction, elements: int, count: int) -> None:
    for operand in instruction.operand_ids:
        walk.need_same(operand)


def _elsewhere(walk: Walk, instruction: Instruction, elements: int, count: int) -> None:
    """The rule of what takes its elements from other places of its operands."""
    for operand in instruction.operand_ids:
        walk.need(operand, elements, instruction.id)


def _bitcast(walk: Walk, instruction: Instruction, elements: int, count: int) -> None:
    operand = walk.table[instruction.operand_ids[0]]
    size = operand.shape.element_count
    if size == count:
        walk.need_same(operand.id)
    else:
        walk.need(operand.id, share(size, elements, count), instruction.id)


def _copy(walk: Walk, instruction: Instruction, elements: int, count: int) -> None:
    operand = walk.table[instruction.operand_ids[0]]
    if transposes(instruction, operand):
        walk.tally.hero("transpose")
        walk.need_moved(operand.id, elements, count, ("layout", *_layout(instruction)))
    else:
        walk.need_same(operand.id)


def transposes(instruction: Instruction, operand: Instruction) -> bool:
    """True if a copy changes the order of an array's elements in memory."""
    return _layout(instruction) != _layout(operand)


def _layout(instruction: Instruction) -> tuple[int, ...]:
    return tuple(instruction.proto.shape.layout.minor_to_major)


def _transpose(walk: Walk, instruction: Instruction, elements: int, count: int) -> None:
    walk.tally.hero("transpose")
    _reorder(walk, instruction, elements, count)


def _reorder(walk: Walk, instruction: Instruction, elements: int, count: int) -> None:
    order = (instruction.opcode, *instruction.proto.dimensions)
    walk.need_moved(instruction.operand_ids[0], elements, count, order)


def _concatenate(
    walk: Walk, instruction: Instruction, elements: int, count: int
) -> None:
    for operand in instruction.operand_ids:
        part = walk.table[operand].shape.element_count
        walk.need(operand, share(part, elements, count), instruction.id)


def _slice(walk: Walk, instruction: Instruction, elements: int, count: int) -> None:
    source = walk.table[instruction.operand_ids[0]]
    bounds = [(s.start, s.limit, s.stride) for s in instruction.proto.slice_dimensions]
    walk.need(source.id, elements, (source.shape.dimensions, _layout(source), *bounds))


def _dynamic_slice(
    walk: Walk, instruction: Instruction, elements: int, count: int
) -> None:
    source = walk.table[instruction.operand_ids[0]]
    starts = instruction.operand_ids[1:]
    where = (source.shape.dimensions, instruction.shape.dimensions)
    walk.need(source.id, elements, (*where, _layout(source), *starts))
    for start in starts:
        walk.need_all(start)


def _dynamic_update_slice(
    walk: Walk, instruction: Instruction, elements: int, count: int
) -> None:
    source, update, *starts = instruction.operand_ids
    new = walk.table[update].shape.element_count
    walk.need(source, share(count - new, elements, count), instruction.id)
    walk.need(update, share(new, elements, count), instruction.id)
    for start in starts:
        walk.need_all(start)


def _gather(walk: Walk, instruction: Instruction, elements: int, count: int) -> None:
    walk.tally.hero("gather")
    source, indices = instruction.operand_ids
    walk.need(source, elements, instruction.id)
    places = walk.table[indices].shape.element_count
    walk.need(indices, share(places, elements, count), instruction.id)


def combines(module: Module, scatter: Instruction) -> bool:
    """True if a scatter needs the old values; a plain overwrite returns an argument."""
    return any(body.root.opcode != "parameter" for body in module.called(scatter))


def scatter_updates(walk: Walk, instruction: Instruction) -> None:
    """Asks for a scatter's indices and updates, and counts combining them."""
    walk.tally.hero("scatter")
    ids = instruction.operand_ids
    arrays = (len(ids) - 1) // 2
    for operand in ids[arrays:]:
        walk.need_all(operand)
    updates = walk.table[ids[-1]].shape.element_count
    for body in walk.module.called(instruction):
        walk.tally.flops += updates * scalar_flops(body)


def _scatter(walk: Walk, instruction: Instruction, elements: int, count: int) -> None:
    scatter_updates(walk, instruction)
    ids = instruction.operand_ids
    for operand in ids[: (len(ids) - 1) // 2]:
        walk.need_all(operand)


def _get_tuple_element(
    walk: Walk, instruction: Instruction, elements: int, count: int
) -> None:
    source = walk.table[instruction.operand_ids[0]]
    walk.need_part(source, instruction.proto.tuple_index, elements)


MOVEMENT: dict[str, Rule] = {
    "add-dependency": _elsewhere,
    "after-all": _nothing,
    "bitcast": _bitcast,
    "bitcast-convert": _bitcast,
    "broadcast": _elsewhere,
    "concatenate": _concatenate,
    "constant": _nothing,
    "copy": _copy,
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_update_slice,
    "gather": _gather,
    "get-tuple-element": _get_tuple_element,
    "iota": _nothing,
    "opt-barrier": everything,
    "pad": _elsewhere,
    "parameter": _nothing,
    "partition-id": _nothing,
    "replica-id": _nothing,
    "reshape": _same,
    "reverse": _reorder,
    "scatter": _scatter,
    "set-dimension-size": _elsewhere,
    "slice": _slice,
    "transpose": _transpose,
    "tuple": everything,
}
"""The rules by opcode."""
