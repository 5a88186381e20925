"""A transformation of a step's own program, as a plan names it."""

from __future__ import annotations

import dataclasses

from lagom_jax.errors import PlanError

TRANSFORMATIONS = ("sliced",)


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
        if self.slices < 2:
            raise PlanError(f"rewrite.slices: {self.slices} is less than 2")

    @property
    def code(self) -> str:
        """The line to write before the step is run."""
        return f"step = lagom_jax.decompose.{self.call}"

    @property
    def call(self) -> str:
        """The transformation and its arguments."""
        sums = "" if self.whole_sums else ", whole_sums=False"
        return f"{self.transformation}(step, slices={self.slices}{sums})"
