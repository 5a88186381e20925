"""A transformation of a step's own program, as a plan names it."""

from __future__ import annotations

import dataclasses

from lagom_jax.errors import PlanError

TRANSFORMATIONS = {"sliced": 2, "rings": 1, "half_batch_loops": 2}
"""Functions of `lagom_jax.decompose`, with the least slices that they cut into."""


@dataclasses.dataclass(frozen=True, slots=True)
class CollectiveCut:
    """A collective that would expose less in slices, with the matmul next to it.

    Example:
        >>> CollectiveCut("ag.1", "all-gather", "a.py:3", "dot.2", "ring", 1e-3, 64, 0.0
        ...     ).form
        'ring'
    """

    collective: str
    """Its name in the schedule that the plan was made from."""
    kind: str
    source: str
    """The user's line, `file:line`; empty where the compiler dropped it."""
    matmul: str
    """The name of the matmul next to it."""
    form: str
    """The best form, as `lagom_jax.decompose.Form.label` has it."""
    saved_seconds: float
    """Seconds of a step less, at most, with the plan's settings and order."""
    memory_bytes: int
    """Bytes for a slice to send and one to receive."""
    ring_seconds: float
    """Seconds of a step less with rings, for comparison."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rewrite:
    """A change of the program that the user writes, or lets the wrapper make.

    Example:
        >>> Rewrite("sliced", 2, True, ("train.py:31",), "0f" * 32, -0.02, 0).code
        'step = lagom_jax.decompose.sliced(step, slices=2)'
    """

    transformation: str
    """A function of `lagom_jax.decompose`."""
    slices: int
    whole_sums: bool
    """True if gradients of weights are summed whole; if not, slice by slice."""
    sites: tuple[str, ...]
    """The lines whose collectives are cut, the largest first."""
    fingerprint: str
    """Of the step as it is written; the plan's own is that of the rewritten one."""
    step_change: float
    """Seconds, beside the best plan for the step as it is written."""
    peak_change: int | None
    """Bytes of device memory, likewise."""

    def __post_init__(self) -> None:
        """Checks that there is such a transformation."""
        if self.transformation not in TRANSFORMATIONS:
            raise PlanError(
                f"rewrite.transformation: {self.transformation!r} is none of "
                f"{', '.join(TRANSFORMATIONS)}"
            )
        least = TRANSFORMATIONS[self.transformation]
        if self.slices < least:
            raise PlanError(f"rewrite.slices: {self.slices} is less than {least}")

    @property
    def code(self) -> str:
        """The line to write before the step is run."""
        return f"step = lagom_jax.decompose.{self.call}"

    @property
    def call(self) -> str:
        """The transformation and its arguments."""
        asks = self.transformation == "sliced" and not self.whole_sums
        sums = ", whole_sums=False" if asks else ""
        return f"{self.transformation}(step, slices={self.slices}{sums})"
