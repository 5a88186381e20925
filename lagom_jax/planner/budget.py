"""Limits of the search for a plan, and of the memory that its step may take."""

from __future__ import annotations

import dataclasses
import os

from lagom_jax.errors import LagomError

_MOST_AT_ONCE = 4
_OFF_RINGS = 3
"""Two ways, and the better one in another order."""
_REWRITES = 8


class BudgetError(LagomError, ValueError):
    """A budget with a limit that is out of range."""


@dataclasses.dataclass(frozen=True, slots=True)
class Budget:
    """Limits of a planning.

    Example:
        >>> Budget(compiles=0)
        Traceback (most recent call last):
        ...
        lagom_jax.planner.budget.BudgetError: compiles=0: the program as it is has to
        be compiled, so at least 1
    """

    compiles: int = 8
    """Runs of the compiler, that of the program as it is among them; what a planner
    still has from another plan counts, too, so that plans do not depend on it. Ways
    off the rings have `off_rings` more, orders where models refuse a step twice
    `answers`, and all ways of rewriting the step together `rewrites`."""
    seconds: float = 600.0
    """After so long nothing new is begun; what is under way is waited for."""
    memory_fraction: float = 0.75
    """The part of a GPU's memory that a step may take; what jax takes by default."""
    memory_bytes: int | None = None
    """A limit in bytes instead."""
    evaluations: int = 100_000
    """Orders that Lagom's own scheduler may try for the program that it is given."""
    at_once: int = 0
    """Compiles at the same time; 0 for one per core, four at most."""

    def __post_init__(self) -> None:
        """Checks that something can be done with it."""
        if self.compiles < 1:
            raise BudgetError(
                f"compiles={self.compiles}: the program as it is has to be compiled, "
                "so at least 1"
            )
        if not self.seconds > 0:
            raise BudgetError(f"seconds={self.seconds}: must be above 0")
        if not 0 < self.memory_fraction <= 1:
            raise BudgetError(
                f"memory_fraction={self.memory_fraction}: must be above 0 and at most 1"
            )
        if self.memory_bytes is not None and self.memory_bytes < 1:
            raise BudgetError(f"memory_bytes={self.memory_bytes}: must be above 0")
        if self.at_once < 0 or self.evaluations < 0:
            raise BudgetError("at_once and evaluations must be at least 0")

    def memory(self, device_bytes: int) -> int:
        """Bytes that a step may take on a device.

        Args:
            device_bytes: What the device has.

        Example:
            >>> Budget().memory(80), Budget(memory_bytes=50).memory(80)
            (60, 50)
        """
        if self.memory_bytes is not None:
            return self.memory_bytes
        return int(self.memory_fraction * device_bytes)

    @property
    def off_rings(self) -> int:
        """Compiles beyond the others, for what is best off the rings.

        Example:
            >>> [Budget(compiles=n).off_rings for n in (1, 2, 4, 8, 12)]
            [0, 1, 2, 3, 3]
        """
        return min(_OFF_RINGS, self.compiles // 2)

    @property
    def answers(self) -> int:
        """Compiles beyond all others, for an order where models refuse a step.

        One for the program as it is, where nothing else is taken, and one by models
        that keep a step from being taken.

        Example:
            >>> [Budget(compiles=n).answers for n in (1, 2, 4, 8)]
            [0, 0, 1, 1]
        """
        return min(1, self.compiles // 4)

    @property
    def most(self) -> int:
        """The compiles of one plan, all together.

        Example:
            >>> Budget(compiles=8).most
            13
        """
        return self.compiles + self.off_rings + 2 * self.answers

    @property
    def rewrites(self) -> int:
        """Compiles beyond those of a plan, for all ways of rewriting its step.

        Example:
            >>> Budget(compiles=8).rewrites
            64
        """
        return _REWRITES * self.compiles

    @property
    def workers(self) -> int:
        """The number of compiles at the same time."""
        return self.at_once or min(os.cpu_count() or 1, _MOST_AT_ONCE)
