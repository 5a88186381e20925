"""From a scheduled module to a program."""

from __future__ import annotations

from collections.abc import Iterator

from lagom_jax.errors import HloError
from lagom_jax.hlo.collective import Collective, collective_kind, read_collective
from lagom_jax.hlo.config import backend_config, section
from lagom_jax.hlo.module import Computation, Instruction, Module
from lagom_jax.hlo.work import launches_kernel, work
from lagom_jax.schedule.program import (
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
from lagom_jax.schedule.tokens import Launches

_STREAMS = {"send": Stream.SEND, "recv": Stream.RECEIVE}


def build_program(module: Module) -> Program:
    """The program that a scheduled module describes.

    Args:
        module: A module with a schedule: what `compiled.as_text()` prints, or a
            `*after_optimizations` dump.

    Raises:
        HloError: The module has no schedule.
    """
    if module.entry.sequence is None:
        raise HloError(
            f"module '{module.name}' is not scheduled, so nothing can be said about "
            "what overlaps; use the dump whose name ends in after_optimizations.txt, "
            "or the text of the compiled executable (compiled.as_text())"
        )
    return Program(
        name=module.name,
        body=_Builder(module).block(module.entry),
        devices=module.devices,
        module=module,
    )


class _Builder:
    def __init__(self, module: Module) -> None:
        self._module = module
        self._launches = Launches(module)
        self._built: dict[int, Block] = {}
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

    def block(self, computation: Computation) -> Block:
        """What a computation does, in schedule order."""
        built = self._built.get(computation.id)
        if built is None:
            nodes: list[Node] = []
            for instruction in _in_order(computation):
                nodes.extend(self._nodes(computation, instruction))
            built = self._built[computation.id] = tuple(nodes)
        return built

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
        stream = _STREAMS.get(found.kind, Stream.COLLECTIVE)
        return Launch(found, stream, launcher.id)

    def _loop(self, instruction: Instruction) -> Loop:
        trips = section(backend_config(instruction), "known_trip_count").get("n")
        # An unknown count may still be written as a bare string in old versions.
        known = trips is not None and str(trips).isdecimal()
        return Loop(
            name=instruction.name,
            body=self.block(_body(self._module, instruction)),
            trips=int(str(trips)) if known else 1,
            trips_known=known,
        )

    def _async_start(
        self, computation: Computation, launcher: Instruction
    ) -> Iterator[Node]:
        """What an `async-start` launches: collectives, or kernels off to the side."""
        (called,) = self._module.called(launcher)
        for inner in _in_order(called):
            if collective_kind(inner.opcode):
                found = read_collective(
                    self._module, called, inner, launcher=(computation, launcher)
                )
                yield self._start(found, launcher)
            else:
                for task in _flat(self._nodes(called, inner)):
                    yield Launch(task, _stream_aside(task), launcher.id)

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


def _stream_aside(task: Task) -> Stream:
    return Stream.ASYNC_COMPUTE if isinstance(task, Kernel) else Stream.COLLECTIVE


def _body(module: Module, loop: Instruction) -> Computation:
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
