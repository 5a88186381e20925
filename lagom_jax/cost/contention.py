"""Speeds of tasks beside each other, as shares of the speed of each alone."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from lagom_jax.program.program import Task


@dataclasses.dataclass(frozen=True, slots=True)
class Rates:
    """Speeds of tasks that run at the same time; 1 is the speed of each alone."""

    running: float
    """Of the task on the compute stream; 1 where there is none."""
    flying: tuple[float, ...]
    """Of the tasks on the other streams, in the order in which they were named."""


class Contention(Protocol):
    """Effect of tasks on each other. Rates hold until a task starts or ends."""

    def rates(self, running: Task | None, flying: tuple[Task, ...]) -> Rates:
        """The speeds of what the compute stream runs, and of tasks on other streams.

        Args:
            running: What the compute stream runs; None while it stands still. It may
                be a collective, a synchronous one.
            flying: One task for each other stream that is busy.
        """
        ...


class NoContention:
    """Every task runs as if it were alone.

    Example:
        >>> NoContention().rates(None, ()).running
        1.0
    """

    def rates(self, running: Task | None, flying: tuple[Task, ...]) -> Rates:
        """All speeds are 1."""
        return Rates(1.0, (1.0,) * len(flying))
