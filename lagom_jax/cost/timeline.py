"""The result of a replay: where a step's time goes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from lagom_jax.cost.prices import Price
from lagom_jax.hlo.collective import Collective
from lagom_jax.plan.step_parts import StepParts
from lagom_jax.program.program import Kernel, Task


@dataclasses.dataclass(slots=True)
class TaskTime:
    """Times of one task in a step, summed over its executions."""

    executions: float = 0
    seconds: float = 0.0
    """As long as it really took, beside whatever ran at the same time."""
    alone_seconds: float = 0.0
    """As long as it would have taken alone."""
    compute_seconds: float = 0.0
    """The part of `seconds` that a kernel spent on the compute stream."""
    exposed_seconds: float = 0.0
    """While it ran off the compute stream and the compute stream stood still for it;
    all of its time if it ran on the compute stream as a collective."""
    beside: dict[Kernel, float] = dataclasses.field(default_factory=dict[Kernel, float])
    """For a task on another stream: seconds beside each kernel that computed."""

    @property
    def hidden_seconds(self) -> float:
        """Seconds that the compute stream did not stand still for."""
        return self.seconds - self.exposed_seconds

    @property
    def contention_seconds(self) -> float:
        """Time that it took longer because of what ran beside it."""
        return self.seconds - self.alone_seconds

    def add(self, other: TaskTime, times: float = 1) -> None:
        """Adds another's figures, as if it had happened `times` times."""
        self.executions += other.executions * times
        self.seconds += other.seconds * times
        self.alone_seconds += other.alone_seconds * times
        self.compute_seconds += other.compute_seconds * times
        self.exposed_seconds += other.exposed_seconds * times
        for kernel, seconds in other.beside.items():
            self.beside[kernel] = self.beside.get(kernel, 0.0) + seconds * times


@dataclasses.dataclass(slots=True)
class Totals:
    """A step, or a stretch of it, in a few figures.

    The compute stream is busy, or stands still for a collective (or runs it itself), or
    for something else: `step_seconds` is the sum of `compute_seconds`,
    `exposed_seconds` and `waiting_seconds`.
    """

    compute_seconds: float = 0.0
    """Kernels on the compute stream, slowed as they were."""
    contention_seconds: float = 0.0
    """Part of that which is due to what ran beside them."""
    communication_seconds: float = 0.0
    """Collectives on any stream, hidden or not."""
    exposed_seconds: float = 0.0
    """The compute stream stands still for collectives, or runs them itself."""
    waiting_seconds: float = 0.0
    """The compute stream stands still for copies and kernels on other streams."""

    @property
    def step_seconds(self) -> float:
        """From the first kernel to the end of everything."""
        return self.compute_seconds + self.exposed_seconds + self.waiting_seconds

    def add(self, other: Totals, times: float = 1) -> None:
        """Adds another stretch, as if it had happened `times` times."""
        self.compute_seconds += other.compute_seconds * times
        self.contention_seconds += other.contention_seconds * times
        self.communication_seconds += other.communication_seconds * times
        self.exposed_seconds += other.exposed_seconds * times
        self.waiting_seconds += other.waiting_seconds * times

    def parts(self) -> StepParts:
        """The same figures, for good."""
        names = [field.name for field in dataclasses.fields(StepParts)]
        return StepParts(**{name: getattr(self, name) for name in names})

    def copy(self) -> Totals:
        """The same figures, to be added to."""
        return dataclasses.replace(self)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """One step of one device, replayed."""

    totals: Totals
    tasks: Mapping[Task, TaskTime]
    prices: Mapping[Task, Price]
    """Cost of the tasks alone, those in arms of a branch that were not taken too."""

    @property
    def step_seconds(self) -> float:
        """From the first kernel to the end of everything."""
        return self.totals.step_seconds

    def collectives(self) -> dict[Collective, TaskTime]:
        """The figures of every collective, in the order of the program."""
        return {t: f for t, f in self.tasks.items() if isinstance(t, Collective)}

    def kernels(self) -> dict[Kernel, TaskTime]:
        """The figures of every kernel, in the order of the program."""
        return {t: f for t, f in self.tasks.items() if isinstance(t, Kernel)}
