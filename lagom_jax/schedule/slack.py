"""What could run beside a collective, whatever the schedule chose.

Work is independent of a collective when the collective does not need it and it does not
need the collective. If a collective is exposed although much independent work stands
in its computation, the schedule is to blame; if there is none, the program is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from lagom_jax.hlo.collective import Collective
from lagom_jax.hlo.module import Computation, Instruction


class Dependencies:
    """Who needs whom inside one computation."""

    def __init__(self, computation: Computation) -> None:
        self._computation = computation
        users: defaultdict[int, list[int]] = defaultdict(list)
        for instruction in computation.instructions.values():
            for needed in _needs(instruction):
                users[needed].append(instruction.id)
        self._users: Mapping[int, Sequence[int]] = users

    def independent_of(self, instruction: Instruction) -> list[Instruction]:
        """The scheduled instructions that could run at the same time."""
        table = self._computation.instructions
        before = _reach(instruction.id, lambda i: _needs(table[i]))
        after = _reach(instruction.id, lambda i: self._users.get(i, ()))
        related = before | after
        sequence = self._computation.sequence or ()
        return [i for i in sequence if i.id not in related]


def _needs(instruction: Instruction) -> Iterable[int]:
    yield from instruction.operand_ids
    yield from instruction.proto.control_predecessor_ids


def _reach(start: int, neighbours: Callable[[int], Iterable[int]]) -> set[int]:
    reached = {start}
    waiting = [start]
    while waiting:
        for neighbour in neighbours(waiting.pop()):
            if neighbour not in reached:
                reached.add(neighbour)
                waiting.append(neighbour)
    return reached


def independent_seconds(
    collectives: Sequence[Collective], alone: Mapping[str, float], *, steps: int
) -> dict[Collective, float]:
    """Seconds of independent work in each collective's own computation.

    Args:
        collectives: The collectives to look at, most interesting first.
        alone: Seconds per execution of kernels and loops, by instruction name.
        steps: How many instructions may be looked at in all; collectives that come
            after that are left out of the result.
    """
    known: dict[int, Dependencies] = {}
    found: dict[Collective, float] = {}
    for collective in collectives:
        computation, instruction = collective.computation, collective.instruction
        if computation is None or instruction is None:
            continue
        steps -= len(computation.instructions)
        if steps < 0:
            break
        dependencies = known.get(computation.id)
        if dependencies is None:
            dependencies = known[computation.id] = Dependencies(computation)
        found[collective] = sum(
            alone.get(i.name, 0.0) for i in dependencies.independent_of(instruction)
        )
    return found
