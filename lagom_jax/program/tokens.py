"""The launches that a wait waits for.

Mostly a `-done` names its `-start` directly. It need not: between them may stand
updates, tuples, and the edge of a loop, when a pipelined program starts a transfer in
one iteration and ends it in the next. So the value is followed back to every launch it
can come from.
"""

from __future__ import annotations

from collections import defaultdict

from lagom_jax.hlo.module import Computation, Instruction, Module

_STARTS = frozenset({"send", "recv"})
_PASS_THROUGH = frozenset(
    {
        "async-update",
        "bitcast",
        "copy",
        "opt-barrier",
        "add-dependency",
        "domain",
    }
)


class Launches:
    """Finds the launches behind the waits of a module."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._synchronous: set[int] = set()
        self._callers: dict[int, list[tuple[Computation, Instruction]]] | None = None

    def synchronous(self, launcher: Instruction) -> None:
        """Says that a launch ran on the compute stream, so nobody waits for it."""
        self._synchronous.add(launcher.id)

    def waited_for(
        self, computation: Computation, done: Instruction
    ) -> tuple[int, ...]:
        """The tokens that a `-done` waits for, in a fixed order."""
        direct = computation.instructions[done.operand_ids[0]]
        if _is_start(direct):
            found = {direct.id}
        else:
            found: set[int] = set()
            self._follow(computation, direct, (), found, set())
        return tuple(sorted(found - self._synchronous))

    def _follow(
        self,
        computation: Computation,
        instruction: Instruction,
        path: tuple[int, ...],
        found: set[int],
        seen: set[tuple[int, tuple[int, ...]]],
    ) -> None:
        """Adds to `found` every launch that the value at `path` can come from."""
        if (instruction.id, path) in seen:
            return
        seen.add((instruction.id, path))
        opcode = instruction.opcode
        if _is_start(instruction):
            found.add(instruction.id)
            return
        operands = computation.operands(instruction)
        if opcode == "tuple":
            chosen = operands[path[0] : path[0] + 1] if path else operands
            for operand in chosen:
                self._follow(computation, operand, path[1:], found, seen)
        elif opcode == "get-tuple-element":
            deeper = (int(instruction.proto.tuple_index), *path)
            self._follow(computation, operands[0], deeper, found, seen)
        elif opcode == "while":
            self._follow(computation, operands[0], path, found, seen)
            body = self._module.computations[instruction.called_ids[0]]
            self._follow(body, body.root, path, found, seen)
        elif opcode == "parameter":
            for caller, call in self._calls(computation):
                number = int(instruction.proto.parameter_number)
                argument = caller.operands(call)[number]
                self._follow(caller, argument, path, found, seen)
                if call.opcode == "while":
                    self._follow(computation, computation.root, path, found, seen)
        elif opcode in _PASS_THROUGH:
            self._follow(computation, operands[0], path, found, seen)

    def _calls(self, computation: Computation) -> list[tuple[Computation, Instruction]]:
        if self._callers is None:
            callers: dict[int, list[tuple[Computation, Instruction]]]
            callers = defaultdict(list)
            for caller in self._module.computations.values():
                for instruction in caller.instructions.values():
                    if instruction.opcode in ("while", "call"):
                        for called in instruction.called_ids:
                            callers[called].append((caller, instruction))
            self._callers = callers
        return self._callers.get(computation.id, [])


def _is_start(instruction: Instruction) -> bool:
    return instruction.opcode in _STARTS or instruction.opcode.endswith("-start")
