"""Cost of a task when it has the device to itself."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from lagom_jax.hlo.collective import Collective
from lagom_jax.program.program import Kernel


@dataclasses.dataclass(frozen=True, slots=True)
class Price:
    """Seconds for one execution of a task alone, and what limits it."""

    seconds: float
    bound: str
    """For a kernel `arithmetic`, `memory` or `launch`; for a collective `latency`,
    `nvlink`, `pcie`, `network`, ... : the resource that sets the time."""
    resource_share: float = 0.0
    """The part of that resource's peak rate that the task reaches, from 0 to 1."""
    gap_seconds: float = dataclasses.field(default=0.0, repr=False)
    """The part of a kernel's seconds that is over before the next can start, and that
    a profiler does not count as the kernel's."""


class Prices(Protocol):
    """Anything that can price kernels and collectives.

    The replay asks for each task once; a pricing need not remember its answers.
    """

    def kernel(self, kernel: Kernel) -> Price:
        """The price of a kernel alone."""
        ...

    def collective(self, collective: Collective) -> Price:
        """The price of a collective alone."""
        ...
