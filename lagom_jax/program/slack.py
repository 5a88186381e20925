"""Work that is independent of a collective, whatever the schedule chose.

Work is independent of a collective when the collective does not need it and it does not
need the collective. If a collective is exposed although much independent work stands
in its computation, the schedule is to blame; if there is none, the program is.

Each collective gets a bit. One pass down a computation and one pass up give every
instruction the set of collectives it needs and the set that need it, so the cost does
not grow with the number of collectives times the number of instructions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from lagom_jax.hlo.collective import Collective
from lagom_jax.hlo.module import Computation, Instruction


def independent_seconds(
    collectives: Sequence[Collective], alone: Mapping[str, float]
) -> dict[Collective, float]:
    """Seconds of independent work in each collective's own computation.

    Args:
        collectives: The collectives to look at. Those made by hand, without an
            instruction, are left out of the result.
        alone: Seconds per execution of kernels and loops, by instruction name.
    """
    groups: defaultdict[Computation, list[Collective]] = defaultdict(list)
    for collective in collectives:
        if collective.computation is not None and collective.instruction is not None:
            groups[collective.computation].append(collective)
    found: dict[Collective, float] = {}
    for computation, members in groups.items():
        starts = [m.instruction.id for m in members if m.instruction is not None]
        seconds = _independent(computation, starts, alone)
        found.update(zip(members, seconds, strict=True))
    return found


def _independent(
    computation: Computation, starts: Sequence[int], alone: Mapping[str, float]
) -> list[float]:
    """Independent seconds for each of the instructions `starts`."""
    bits: defaultdict[int, int] = defaultdict(int)
    for position, start in enumerate(starts):
        # One start may launch several collectives.
        bits[start] |= 1 << position
    instructions = list(computation.instructions.values())
    needs = {i.id: list(_needs(i)) for i in instructions}
    below: dict[int, int] = {}
    for instruction in instructions:
        sets = bits.get(instruction.id, 0)
        for needed in needs[instruction.id]:
            sets |= below[needed]
        below[instruction.id] = sets
    above: defaultdict[int, int] = defaultdict(int)
    for instruction in reversed(instructions):
        sets = above[instruction.id] | bits.get(instruction.id, 0)
        above[instruction.id] = sets
        for needed in needs[instruction.id]:
            above[needed] |= sets
    working = [
        (below[i.id] | above[i.id], alone[i.name])
        for i in instructions
        if i.name in alone
    ]
    if not working:
        return [0.0] * len(starts)
    width = (len(starts) + 7) // 8
    packed = b"".join(sets.to_bytes(width, "little") for sets, _ in working)
    related = np.unpackbits(
        np.frombuffer(packed, np.uint8).reshape(-1, width), axis=1, bitorder="little"
    )[:, : len(starts)]
    seconds = np.array([seconds for _, seconds in working])
    return [float(s) for s in seconds @ (1 - related.astype(np.float32))]


def _needs(instruction: Instruction) -> Iterator[int]:
    yield from instruction.operand_ids
    yield from instruction.proto.control_predecessor_ids
