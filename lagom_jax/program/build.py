"""From a scheduled module to a program."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

from lagom_jax.errors import HloError
from lagom_jax.hlo.collective import Collective, collective_kind, read_collective
from lagom_jax.hlo.config import backend_config, section
from lagom_jax.hlo.module import Computation, Instruction, Module
from lagom_jax.hlo.work import launches_kernel, work
from lagom_jax.program.program import (
    Block,
    Branch,
    Kernel,
    Launch,
    Loop,
    Node,
    Program,
    Run,
    Stream,
    Task,
    Wait,
)
from lagom_jax.program.tokens import Launches

CALLERS = frozenset({"while", "conditional", "call"})
"""Opcodes whose nodes depend on the order inside the computations they call."""
_STREAMS = {"send": Stream.SEND, "recv": Stream.RECEIVE}


Orders: TypeAlias = Mapping[int, Sequence[Instruction]]
"""By id of a computation: its instructions in another order than the scheduled one."""


def build_program(module: Module) -> Program:
    """The program that a scheduled module describes.

    Args:
        module: A module with a schedule: what `compiled.as_text()` prints, or a
            `*after_optimizations` dump.

    Raises:
        HloError: The module has no schedule.
    """
    return Builder(module).program()


class Builder:
    """Builds programs from a module, in the scheduled order or in another one.

    Tasks are the same objects in all of them, and so are launches and waits, so that
    what is known of a task in one order holds in the next.
    """

    def __init__(self, module: Module, aside: Collection[int] = ()) -> None:
        """Prepares for a module.

        Args:
            module: The module.
            aside: Ids of instructions that launch collectives on the second stream
                for them, beside those that the module itself has there.

        Raises:
            HloError: The module has no schedule.
        """
        if module.entry.sequence is None:
            raise HloError(
                f"module '{module.name}' is not scheduled, so nothing can be said "
                "about what overlaps; use the dump whose name ends in "
                "after_optimizations.txt, or the text of the compiled executable "
                "(compiled.as_text())"
            )
        self.module = module
        self.aside = frozenset(aside)
        """Names of tasks for the second stream."""
        self._nodes = _Nodes(module, self.aside)

    def program(self, orders: Orders | None = None) -> Program:
        """The step.

        Args:
            orders: For some computations, another order of their instructions.
        """
        return Program(
            name=self.module.name,
            body=self.block(self.module.entry, orders),
            devices=self.module.devices,
            module=self.module,
        )

    def block(self, computation: Computation, orders: Orders | None = None) -> Block:
        """The block of nodes of a computation.

        Args:
            computation: One that has a sequence.
            orders: As for `program`.
        """
        if orders:
            return self._nodes.reordered(orders).block(computation)
        return self._nodes.block(computation)

    def nodes(
        self,
        computation: Computation,
        instruction: Instruction,
        orders: Orders | None = None,
    ) -> Block:
        """The nodes of one instruction of a computation; most have none.

        Args:
            computation: One that has a sequence.
            instruction: One of its instructions.
            orders: As for `program`: of the computations that the instruction calls.
        """
        nodes = self._nodes.reordered(orders) if orders else self._nodes
        return nodes.of(computation, instruction)


class _Nodes:
    def __init__(self, module: Module, aside: frozenset[int]) -> None:
        self._module, self._aside = module, aside
        self._launches = Launches(module)
        self._orders: Orders = {}
        self._built: dict[int, Block] = {}
        self._leaves: dict[tuple[int, int], Block] = {}
        """Of instructions whose nodes no order changes, by computation and id."""
        # Fusions may hold a collective together with the slices around it.
        self._communicating = {
            computation.id
            for computation in module.computations.values()
            if computation.sequence is None
            and any(
                collective_kind(instruction.opcode)
                for instruction in computation.instructions.values()
            )
        }
        # Which launches run on the compute stream is found as they are met, and a
        # wait must know.
        self.block(module.entry)

    def reordered(self, orders: Orders) -> _Nodes:
        """The same nodes, put together in another order."""
        other = copy.copy(self)
        other._orders, other._built = orders, {}
        return other

    def block(self, computation: Computation) -> Block:
        """The block of a computation, in the order of its instructions."""
        built = self._built.get(computation.id)
        if built is None:
            nodes: list[Node] = []
            order = self._orders.get(computation.id)
            for instruction in _in_order(computation) if order is None else order:
                nodes.extend(self.of(computation, instruction))
            built = self._built[computation.id] = tuple(nodes)
        return built

    def of(self, computation: Computation, instruction: Instruction) -> Block:
        """The nodes of an instruction."""
        if instruction.opcode in CALLERS:
            return tuple(self._nodes(computation, instruction))
        key = (computation.id, instruction.id)
        known = self._leaves.get(key)
        if known is None:
            known = tuple(self._nodes(computation, instruction))
            self._leaves[key] = known
        return known

    def _nodes(
        self, computation: Computation, instruction: Instruction
    ) -> Iterator[Node]:
        opcode = instruction.opcode
        if opcode == "while":
            yield self._loop(instruction)
        elif opcode == "conditional":
            arms = tuple(self.block(c) for c in self._module.called(instruction))
            if any(arms):
                yield Branch(instruction.name, arms)
        elif opcode == "call":
            for called in self._module.called(instruction):
                yield from self.block(called)
        elif opcode == "async-start":
            yield from self._async_start(computation, instruction)
        elif opcode.endswith("-done"):
            tokens = self._launches.waited_for(computation, instruction)
            if tokens:
                yield Wait(tokens)
        elif opcode == "copy-start":
            kernel = self._kernel(computation, instruction)
            yield Launch(kernel, Stream.COPY, instruction.id)
        elif collective_kind(opcode):
            found = read_collective(self._module, computation, instruction)
            yield self._start(found, instruction)
        elif opcode == "fusion" and self._communicating.intersection(
            instruction.called_ids
        ):
            yield from self._communicating_fusion(computation, instruction)
        elif launches_kernel(instruction):
            yield Run(self._kernel(computation, instruction))

    def _kernel(self, computation: Computation, instruction: Instruction) -> Kernel:
        found = work(self._module, computation, instruction)
        return Kernel(instruction.name, found, instruction)

    def _start(self, found: Collective, launcher: Instruction) -> Node:
        if found.is_sync:
            self._launches.synchronous(launcher)
            return Run(found)
        return Launch(found, self._stream(found, launcher), launcher.id)

    def _stream(self, task: Task, launcher: Instruction) -> Stream:
        if isinstance(task, Kernel):
            return Stream.ASYNC_COMPUTE
        if task.kind in _STREAMS:
            return _STREAMS[task.kind]
        aside = task.stream or launcher.id in self._aside
        return Stream.ASIDE if aside else Stream.COLLECTIVE

    def _loop(self, instruction: Instruction) -> Loop:
        trips = trips_of(instruction)
        return Loop(
            name=instruction.name,
            body=self.block(loop_body(self._module, instruction)),
            trips=1 if trips is None else trips,
            trips_known=trips is not None,
            copies=_copies_of(instruction),
        )

    def _async_start(
        self, computation: Computation, launcher: Instruction
    ) -> Iterator[Node]:
        """Launches of an `async-start`: collectives, or kernels on another stream."""
        (called,) = self._module.called(launcher)
        for inner in _in_order(called):
            if collective_kind(inner.opcode):
                found = read_collective(
                    self._module, called, inner, launcher=(computation, launcher)
                )
                yield self._start(found, launcher)
            else:
                for task in _flat(self._nodes(called, inner)):
                    yield Launch(task, self._stream(task, launcher), launcher.id)

    def _communicating_fusion(
        self, computation: Computation, fusion: Instruction
    ) -> Iterator[Node]:
        for called in self._module.called(fusion):
            for inner in called.instructions.values():
                if collective_kind(inner.opcode):
                    yield Run(
                        read_collective(
                            self._module, called, inner, launcher=(computation, fusion)
                        )
                    )


def trips_of(instruction: Instruction) -> int | None:
    """The trip count of a while loop, where the compiler knew it."""
    trips = section(backend_config(instruction), "known_trip_count").get("n")
    # An unknown count may still be written as a bare string in old versions.
    known = trips is not None and str(trips).isdecimal()
    return int(str(trips)) if known else None


def _copies_of(loop: Instruction) -> int:
    """Iterations in one body: XLA counts so many on, where a loop of jax counts one."""
    step = str(section(backend_config(loop), "known_init_step").get("step", ""))
    return max(1, int(step)) if step.isdecimal() else 1


def loop_body(module: Module, loop: Instruction) -> Computation:
    """The body of a while: the proto lists body, then condition."""
    return module.computations[loop.called_ids[0]]


def _in_order(computation: Computation) -> Iterator[Instruction]:
    if computation.sequence is not None:
        return iter(computation.sequence)
    return iter(computation.instructions.values())


def _flat(nodes: Iterator[Node]) -> Iterator[Task]:
    """The tasks of nodes one after another, loops written out."""
    for node in nodes:
        if isinstance(node, Run | Launch):
            yield node.task
        elif isinstance(node, Loop):
            for _ in range(node.trips):
                yield from _flat(iter(node.body))
        elif isinstance(node, Branch):
            yield from _flat(iter(max(node.arms, key=len)))
