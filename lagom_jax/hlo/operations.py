"""Operations that compute: how much arithmetic they are and what they read.

A rule gets a walk, an instruction, how many elements of its result are needed and how
many it has; it counts the operation and asks the walk for elements of the operands.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lagom_jax.hlo.arithmetic import scalar_flops
from lagom_jax.hlo.convolution import convolution_flops
from lagom_jax.hlo.custom_calls import is_silent, read_call
from lagom_jax.hlo.kinds import KINDS
from lagom_jax.hlo.matmul import dot_matmul, ragged_matmul
from lagom_jax.hlo.module import Instruction, Shape
from lagom_jax.hlo.movement import Rule, everything
from lagom_jax.hlo.sorting import bitonic_sort
from lagom_jax.hlo.tally import share

if TYPE_CHECKING:
    from lagom_jax.hlo.traffic import Walk


def _first(instruction: Instruction) -> Shape:
    return instruction.shape.leaves[0]


def unknown(walk: Walk, instruction: Instruction, elements: int, count: int) -> None:
    """The rule for an unknown opcode: records its name and reads all operands."""
    walk.tally.hero("custom")
    walk.tally.target = walk.tally.target or instruction.opcode
    everything(walk, instruction, elements, count)


def _reduce(walk: Walk, instruction: Instruction, elements: int, count: int) -> None:
    walk.tally.hero("reduction")
    ids = instruction.operand_ids
    arrays = len(ids) // 2
    count = _first(instruction).element_count
    if instruction.shape.type == "tuple":
        elements = count
    terms = walk.table[ids[0]].shape.element_count
    wanted = share(terms, elements, count)
    (body,) = walk.module.called(instruction)
    walk.tally.flops += max(0, wanted - elements) * scalar_flops(body)
    for operand in ids[:arrays]:
        walk.need(operand, wanted, instruction.id)
    for operand in ids[arrays:]:
        walk.need_all(operand)


def _reduce_window(
    walk: Walk, instruction: Instruction, elements: int, count: int
) -> None:
    walk.tally.hero("reduction")
    ids = instruction.operand_ids
    arrays = len(ids) // 2
    if instruction.shape.type == "tuple":
        elements = _first(instruction).element_count
    window = math.prod([d.size for d in instruction.proto.window.dimensions])
    (body,) = walk.module.called(instruction)
    walk.tally.flops += elements * (window - 1) * scalar_flops(body)
    for operand in ids[:arrays]:
        walk.need(operand, elements * window, instruction.id)
    for operand in ids[arrays:]:
        walk.need_all(operand)


def _select_and_scatter(
    walk: Walk, instruction: Instruction, elements: int, count: int
) -> None:
    walk.tally.hero("scatter")
    source = walk.table[instruction.operand_ids[1]].shape.element_count
    window = math.prod([d.size for d in instruction.proto.window.dimensions])
    select, combine = walk.module.called(instruction)
    walk.tally.flops += source * (window - 1) * scalar_flops(select)
    walk.tally.flops += source * scalar_flops(combine)
    everything(walk, instruction, elements, count)


def _map(walk: Walk, instruction: Instruction, elements: int, count: int) -> None:
    for body in walk.module.called(instruction):
        walk.tally.flops += elements * scalar_flops(body)
    walk.tally.arithmetic = True
    for operand in instruction.operand_ids:
        walk.need_same(operand)


def _scan(walk: Walk, instruction: Instruction, elements: int, count: int) -> None:
    walk.tally.hero("reduction")
    terms = walk.table[instruction.operand_ids[0]].shape.element_count
    for body in walk.module.called(instruction):
        walk.tally.flops += terms * scalar_flops(body)
    everything(walk, instruction, elements, count)


def _sort(walk: Walk, instruction: Instruction, elements: int, count: int) -> None:
    tally = walk.tally
    tally.hero("sort")
    keys = _first(instruction)
    dimension: int = instruction.proto.dimensions[0] if keys.dimensions else 0
    length = (keys.dimensions or (1,))[dimension]
    moved = instruction.shape.byte_size
    rows = keys.element_count // max(1, length)
    plan = bitonic_sort(length, rows, moved // max(1, keys.element_count))
    for body in walk.module.called(instruction):
        tally.flops += plan.comparisons * scalar_flops(body)
    tally.extra_read += (plan.passes - 1) * moved
    tally.extra_written += (plan.passes - 1) * moved
    everything(walk, instruction, elements, count)


def _top_k(walk: Walk, instruction: Instruction, elements: int, count: int) -> None:
    walk.tally.hero("sort")
    for operand in instruction.operand_ids:
        walk.tally.flops += walk.table[operand].shape.element_count
    everything(walk, instruction, elements, count)


def _fft(walk: Walk, instruction: Instruction, elements: int, count: int) -> None:
    walk.tally.hero("fft")
    source = walk.table[instruction.operand_ids[0]].shape
    points = math.prod(instruction.proto.fft_length)
    # The larger side of a transform with real numbers on one side is the real one.
    total = max(source.element_count, count)
    whole = 5.0 * total * math.log2(points) if points > 1 else 0.0
    real = source.type[0] != "c" or instruction.shape.type[0] != "c"
    walk.tally.flops += whole / 2 if real else whole
    everything(walk, instruction, elements, count)


def _solve(walk: Walk, instruction: Instruction, elements: int, count: int) -> None:
    walk.tally.hero("solve")
    size = walk.table[instruction.operand_ids[0]].shape.dimensions[-1]
    third = 3 if instruction.opcode == "cholesky" else 1
    walk.tally.flops += count * size / third
    everything(walk, instruction, elements, count)


def _dot(walk: Walk, instruction: Instruction, elements: int, count: int) -> None:
    walk.tally.hero("matmul")
    table, ids, proto = walk.table, instruction.operand_ids, instruction.proto
    lhs, rhs = table[ids[0]].shape, table[ids[1]].shape
    if instruction.opcode == "ragged-dot":
        numbers = proto.ragged_dot_dimension_numbers
        matmul = ragged_matmul(lhs, rhs, instruction.shape.type, numbers)
    else:
        numbers = proto.dot_dimension_numbers
        matmul = dot_matmul(lhs, rhs, instruction.shape.type, numbers)
    walk.tally.matmuls.append(matmul)
    walk.tally.flops += matmul.flops
    everything(walk, instruction, elements, count)


def _convolution(
    walk: Walk, instruction: Instruction, elements: int, count: int
) -> None:
    walk.tally.hero("convolution")
    data, kernel = [walk.table[i].shape for i in instruction.operand_ids[:2]]
    walk.tally.flops += convolution_flops(
        instruction.proto, data, kernel, instruction.shape
    )
    everything(walk, instruction, elements, count)


def _custom_call(
    walk: Walk, instruction: Instruction, elements: int, count: int
) -> None:
    tally = walk.tally
    if is_silent(instruction.proto.custom_call_target):
        return
    operands = [walk.table[i].shape for i in instruction.operand_ids]
    call = read_call(instruction, operands)
    tally.hero(call.kind)
    tally.target = instruction.proto.custom_call_target
    tally.flops += call.flops
    tally.matmuls.extend(call.matmuls)
    tally.extra_read += call.extra_read
    tally.extra_written += call.extra_written
    everything(walk, instruction, elements, count)


def _collective(
    walk: Walk, instruction: Instruction, elements: int, count: int
) -> None:
    walk.tally.hero("collective")
    everything(walk, instruction, elements, count)


def _random(walk: Walk, instruction: Instruction, elements: int, count: int) -> None:
    walk.tally.arithmetic = True
    everything(walk, instruction, elements, count)


OPERATIONS: dict[str, Rule] = {
    **dict.fromkeys(KINDS, _collective),
    **dict.fromkeys([f"{kind}-start" for kind in KINDS], _collective),
    "cholesky": _solve,
    "convolution": _convolution,
    "custom-call": _custom_call,
    "dot": _dot,
    "fft": _fft,
    "map": _map,
    "ragged-dot": _dot,
    "reduce": _reduce,
    "reduce-window": _reduce_window,
    "rng": _random,
    "rng-bit-generator": _random,
    "rng-get-and-update-state": _random,
    "scaled-dot": _dot,
    "scan": _scan,
    "select-and-scatter": _select_and_scatter,
    "sort": _sort,
    "topk": _top_k,
    "triangular-solve": _solve,
}
"""The rules by opcode; `ARITHMETIC` has the elementwise ones."""
