"""The books of a replay: who ran for how long, beside whom, and who was waited for."""

from __future__ import annotations

from lagom_jax.cost.timeline import TaskTime, Totals
from lagom_jax.hlo.collective import Collective
from lagom_jax.program.program import Kernel, Task


class Ledger:
    """Record of a stretch of a program.

    A ledger can leave out the figures of single tasks and keep only the totals; that
    is what a search over orders needs.
    """

    def __init__(self, *, detailed: bool = True) -> None:
        self.tasks: dict[Task, TaskTime] = {}
        self.totals = Totals()
        self.detailed = detailed

    def fresh(self) -> Ledger:
        """An empty ledger of the same kind."""
        return Ledger(detailed=self.detailed)

    def ran(self, task: Task, seconds: float, alone: float) -> None:
        """A task ran on the compute stream."""
        totals = self.totals
        if isinstance(task, Collective):
            totals.communication_seconds += seconds
            totals.exposed_seconds += seconds
        else:
            totals.compute_seconds += seconds
            totals.contention_seconds += seconds - alone
        if self.detailed:
            figures = self._of(task)
            figures.executions += 1
            figures.seconds += seconds
            figures.alone_seconds += alone
            if isinstance(task, Collective):
                figures.exposed_seconds += seconds
            else:
                figures.compute_seconds += seconds

    def launched(self, task: Task) -> None:
        """A task was handed to another stream."""
        if self.detailed:
            self._of(task).executions += 1

    def flew(
        self, task: Task, seconds: float, work: float, kernel: Kernel | None
    ) -> None:
        """A task was under way on another stream, beside a kernel or not."""
        if isinstance(task, Collective):
            self.totals.communication_seconds += seconds
        if self.detailed:
            figures = self._of(task)
            figures.seconds += seconds
            figures.alone_seconds += work
            if kernel is not None:
                figures.beside[kernel] = figures.beside.get(kernel, 0.0) + seconds

    def stood_still(self, task: Task, seconds: float) -> None:
        """The compute stream waited, and this task is the reason."""
        if isinstance(task, Collective):
            self.totals.exposed_seconds += seconds
        else:
            self.totals.waiting_seconds += seconds
        if self.detailed:
            self._of(task).exposed_seconds += seconds

    def add(self, other: Ledger, times: float = 1) -> None:
        """Takes over another stretch, as if it had happened so many times."""
        self.totals.add(other.totals, times)
        for task, figures in other.tasks.items():
            self._of(task).add(figures, times)

    def _of(self, task: Task) -> TaskTime:
        found = self.tasks.get(task)
        if found is None:
            found = self.tasks[task] = TaskTime()
        return found
