"""One device's scheduled step: what runs, on which stream, and who waits for whom.

A program is a tree. XLA's GPU runtime walks it in order: kernels go to the compute
stream; a launch hands a task to another stream and returns at once; a wait holds the
compute stream until the tasks launched under a token are done; a loop repeats its
body. The types hold no times: pricing is the cost room's business.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator
from typing import TypeAlias

from lagom_jax.hlo.collective import Collective
from lagom_jax.hlo.module import Instruction, Module
from lagom_jax.hlo.work import Work


class Stream(enum.Enum):
    """The stream of a task. Each stream runs its tasks one after another."""

    COMPUTE = "compute"
    COLLECTIVE = "collective"
    ASIDE = "collective, aside"
    """The second of the streams for collectives."""
    SEND = "send"
    RECEIVE = "receive"
    COPY = "copy"
    ASYNC_COMPUTE = "async compute"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """Work of this device alone: a fusion, a matmul, a copy, a library call."""

    name: str
    work: Work
    instruction: Instruction | None = None


Task: TypeAlias = Kernel | Collective


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Run a task on the compute stream; a collective here is synchronous."""

    task: Task


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """Hand a task to another stream as soon as compute gets here."""

    task: Task
    stream: Stream
    token: int
    """The token that a wait names; several launches may share one."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Wait:
    """Hold the compute stream until everything launched under the tokens is done."""

    tokens: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """Repeat a body."""

    name: str
    body: Block
    trips: int
    trips_known: bool
    """False where the compiler could not tell; then `trips` is 1."""
    copies: int = 1
    """Iterations that the body has one after another: two where it was doubled."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """Run one of several bodies; which one, the program decides as it runs."""

    name: str
    arms: tuple[Block, ...]


Node: TypeAlias = Run | Launch | Wait | Loop | Branch
Block: TypeAlias = tuple[Node, ...]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Program:
    """One device's step."""

    name: str
    body: Block
    devices: int
    """The number of devices that run the step together."""
    module: Module | None = None
    """The module that it came from; None for a program made by hand."""

    def tasks(self) -> Iterator[tuple[Task, int, bool]]:
        """Every task with its executions per step and whether it is synchronous.

        Of a branch every arm is listed, as if it ran.
        """
        yield from tasks_in(self.body)

    def collectives(self) -> Iterator[tuple[Collective, int, bool]]:
        """Every collective with its executions per step and whether it is sync."""
        for task, executions, sync in self.tasks():
            if isinstance(task, Collective):
                yield task, executions, sync

    def unknown_loops(self) -> tuple[str, ...]:
        """Loops whose number of trips the compiler did not know; counted once."""
        return tuple(_unknown_loops(self.body))

    def called_kernels(self, kind: str = "") -> tuple[str, ...]:
        """Names of the kernels of libraries that the program calls.

        Args:
            kind: Only those of a kind, such as `custom`, of which nothing is known.
        """
        works = (task.work for task, _, _ in self.tasks() if isinstance(task, Kernel))
        found = {work.target for work in works if kind in ("", work.kind)}
        return tuple(sorted(found - {""}))


def nodes_in(block: Block) -> Iterator[Node]:
    """Every node of a block, what is inside loops and arms after the one around it.

    Example:
        >>> inner = Wait((1,))
        >>> [type(node).__name__ for node in nodes_in((Loop("l", (inner,), 3, True),))]
        ['Loop', 'Wait']
    """
    for node in block:
        yield node
        if isinstance(node, Loop):
            yield from nodes_in(node.body)
        elif isinstance(node, Branch):
            for arm in node.arms:
                yield from nodes_in(arm)


def is_closed(block: Block) -> bool:
    """True if a block waits for all that it launches, and for nothing else.

    Example:
        >>> is_closed((Wait((1,)),))
        False
    """
    under_way: set[int] = set()
    for node in nodes_in(block):
        if isinstance(node, Launch):
            under_way.add(node.token)
        elif isinstance(node, Wait):
            if not under_way.issuperset(node.tokens):
                return False
            under_way.difference_update(node.tokens)
    return not under_way


def tasks_in(block: Block, times: int = 1) -> Iterator[tuple[Task, int, bool]]:
    """Every task of a block with its executions and whether it is synchronous.

    Args:
        block: The nodes; of a branch every arm is listed, as if it ran.
        times: How often the block runs.

    Example:
        >>> kernel = Kernel("k", Work("copy", 0.0, 1, 1))
        >>> loop = Loop("l", (Run(kernel),), 3, True)
        >>> [(task.name, times, sync) for task, times, sync in tasks_in((loop,))]
        [('k', 3, True)]
    """
    for node in block:
        if isinstance(node, Run):
            yield node.task, times, True
        elif isinstance(node, Launch):
            yield node.task, times, False
        elif isinstance(node, Loop):
            yield from tasks_in(node.body, times * node.trips)
        elif isinstance(node, Branch):
            for arm in node.arms:
                yield from tasks_in(arm, times)


def _unknown_loops(block: Block) -> Iterator[str]:
    for node in block:
        if isinstance(node, Loop):
            if not node.trips_known:
                yield node.name
            yield from _unknown_loops(node.body)
        elif isinstance(node, Branch):
            for arm in node.arms:
                yield from _unknown_loops(arm)
