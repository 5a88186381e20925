"""Speeds of tasks beside each other, as shares of the speed of each alone."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from lagom_jax.program.program import Kernel, Task


@dataclasses.dataclass(frozen=True, slots=True)
class Rates:
    """Speeds of tasks that run at the same time; 1 is the speed of each alone."""

    kernel: float
    """Of the kernel on the compute stream; 1 where there is none."""
    flying: tuple[float, ...]
    """Of the tasks on the other streams, in the order in which they were named."""


class Contention(Protocol):
    """Effect of tasks on each other. Rates hold until a task starts or ends."""

    def rates(self, kernel: Kernel | None, flying: tuple[Task, ...]) -> Rates:
        """The speeds of a kernel and of the tasks under way on other streams.

        Args:
            kernel: What the compute stream runs; None while it stands still.
            flying: One task for each other stream that is busy.
        """
        ...


class NoContention:
    """Every task runs as if it were alone.

    Example:
        >>> NoContention().rates(None, ()).kernel
        1.0
    """

    def rates(self, kernel: Kernel | None, flying: tuple[Task, ...]) -> Rates:
        """All speeds are 1."""
        return Rates(1.0, (1.0,) * len(flying))
