"""A block in which tasks have numbers: what can be said of it before it is replayed."""

from __future__ import annotations

from collections import defaultdict
from typing import Final, NamedTuple, TypeAlias

from lagom_jax.hlo.collective import Collective
from lagom_jax.program.program import Block, Launch, Loop, Run, Stream, Task, Wait

STREAMS: Final = tuple(Stream)
"""By number, in the order of their definition."""


class RunKernels(NamedTuple):
    """Tasks on the compute stream, one after another, all kernels."""

    numbers: tuple[int, ...]


class RunCollective(NamedTuple):
    """A collective on the compute stream."""

    number: int


class LaunchTask(NamedTuple):
    """A task that is handed to another stream."""

    number: int
    stream: int
    token: int


class WaitFor(NamedTuple):
    """A wait for what was launched under tokens."""

    tokens: tuple[int, ...]


class Repeat(NamedTuple):
    """A loop."""

    trips: int
    body: tuple[Action, ...]


Action: TypeAlias = RunKernels | RunCollective | LaunchTask | WaitFor | Repeat


class NumberedBlock:
    """A block in which tasks have numbers.

    Example:
        >>> from lagom_jax.hlo.work import Work
        >>> from lagom_jax.program.program import Kernel
        >>> one = Kernel("k", Work("copy", 0.0, 1, 1))
        >>> NumberedBlock((Run(one), Run(one))).tasks == (one,)
        True
    """

    def __init__(self, block: Block) -> None:
        """Numbers the tasks, in the order in which they are met.

        Args:
            block: Its nodes, of which none is a branch.
        """
        self._numbers: dict[Task, int] = {}
        self.actions = self._actions(block)
        self.tasks = tuple(self._numbers)
        """By number."""
        self.collective = tuple(isinstance(one, Collective) for one in self.tasks)
        """By number of a task whether it is one."""
        self.in_turn = self._in_turn()
        """By number of a collective all those of its communicator, which NCCL runs in
        turn; none for one without."""

    def _actions(self, block: Block) -> tuple[Action, ...]:
        found: list[Action] = []
        for node in block:
            if isinstance(node, Wait):
                found.append(WaitFor(node.tokens))
            elif isinstance(node, Launch):
                number, stream = self._number(node.task), STREAMS.index(node.stream)
                found.append(LaunchTask(number, stream, node.token))
            elif isinstance(node, Loop):
                # What never runs has no price.
                if node.trips:
                    found.append(Repeat(node.trips, self._actions(node.body)))
            else:
                assert isinstance(node, Run), "branches have been decided"
                number = self._number(node.task)
                if isinstance(node.task, Collective):
                    found.append(RunCollective(number))
                elif found and isinstance(before := found[-1], RunKernels):
                    found[-1] = RunKernels((*before.numbers, number))
                else:
                    found.append(RunKernels((number,)))
        return tuple(found)

    def _in_turn(self) -> dict[int, frozenset[int]]:
        members: defaultdict[bytes | None, list[int]] = defaultdict(list)
        for number, task in enumerate(self.tasks):
            if isinstance(task, Collective):
                members[task.communicator].append(number)
        found: dict[int, frozenset[int]] = {}
        for communicator, numbers in members.items():
            together = frozenset[int](() if communicator is None else numbers)
            found |= dict.fromkeys(numbers, together)
        return found

    def _number(self, task: Task) -> int:
        return self._numbers.setdefault(task, len(self._numbers))
