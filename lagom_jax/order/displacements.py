"""Displacements of collectives by an order: when they start and are waited for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from lagom_jax.cost.loads import KernelLoad
from lagom_jax.hlo.collective import Collective, plain_name
from lagom_jax.order.sequence import Order, UnitSequence
from lagom_jax.program.program import Block, Kernel, Loop, Run
from lagom_jax.units import in_seconds


@dataclasses.dataclass(frozen=True, slots=True)
class Displacement:
    """A collective that starts, or is waited for, at another time than before.

    Example:
        >>> print(Displacement("all-gather-start.3", 32, -120e-6, 0.0))
        all-gather.3, 32 times a step, starts 120 us earlier, is waited for as before
    """

    collective: str
    times: int
    """Runs in a step."""
    start_change_seconds: float
    """Of the kernels before its launch, each alone; below 0 where it starts earlier."""
    wait_change_seconds: float
    """The same for the wait; above 0 where it is waited for later."""

    @property
    def weight(self) -> float:
        """Seconds of both changes, over a step."""
        changes = abs(self.start_change_seconds) + abs(self.wait_change_seconds)
        return self.times * changes

    def __str__(self) -> str:
        """In words."""
        start = _in_words(self.start_change_seconds)
        wait = _in_words(self.wait_change_seconds)
        name = plain_name(self.collective)
        times = f", {self.times} times a step," if self.times > 1 else ""
        return f"{name}{times} starts {start}, is waited for {wait}"


def _in_words(seconds: float) -> str:
    if abs(seconds) < 0.5e-6:
        return "as before"
    return f"{in_seconds(abs(seconds))} {'earlier' if seconds < 0 else 'later'}"


def displacements_of(
    sequence: UnitSequence,
    order: Order,
    times: int,
    kernel: Callable[[Kernel], tuple[float, KernelLoad]],
) -> Iterator[Displacement]:
    """Displacements of the collectives of a computation by an order.

    Args:
        sequence: The computation.
        order: The new order of its units.
        times: Runs of it in a step.
        kernel: Seconds and load of a kernel alone.
    """
    alone = [_alone(unit.nodes, kernel) for unit in sequence.units]
    before, after = (_begins(alone, o) for o in (sequence.given, order))
    waits = {token: u.number for u in sequence.units for token in u.tokens}
    for unit in sequence.units:
        for launch in unit.launches:
            if isinstance(launch.task, Collective) and launch.token in waits:
                wait = waits[launch.token]
                displacement = Displacement(
                    launch.task.name,
                    times,
                    after[unit.number] - before[unit.number],
                    after[wait] - before[wait],
                )
                if displacement.weight > times * 1e-6:
                    yield displacement


def _begins(alone: list[float], order: Order) -> dict[int, float]:
    """By unit the time at which it would begin if there were only kernels."""
    now, found = 0.0, dict[int, float]()
    for number in order:
        found[number] = now
        now += alone[number]
    return found


def _alone(block: Block, kernel: Callable[[Kernel], tuple[float, KernelLoad]]) -> float:
    total = 0.0
    for node in block:
        if isinstance(node, Run) and isinstance(node.task, Kernel):
            total += kernel(node.task)[0]
        elif isinstance(node, Loop):
            total += node.trips * _alone(node.body, kernel)
    return total
