"""A transformation of a step's own program, as a plan names it."""

from __future__ import annotations

import dataclasses

from lagom_jax.errors import PlanError
from lagom_jax.plan.form import Form

TRANSFORMATIONS = {"sliced": 2, "rings": 1, "half_batch_loops": 2, "with_forms": 1}
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
class SiteForm:
    """The form of the collectives at one place, and of the matmuls next to them.

    Example:
        >>> SiteForm("layers.py:31", "all_gather", Form("ring")).code
        '("layers.py:31", "all_gather"): Form("ring")'
    """

    line: str
    """A line of the user's source, the collective's own or that of a call to it."""
    kind: str
    """jax's primitive: `all_gather`, `reduce_scatter` or `psum`."""
    form: Form

    @property
    def code(self) -> str:
        """The same as an entry of a dict."""
        return f'("{self.line}", "{self.kind}"): {self.form.code}'


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
    forms: tuple[SiteForm, ...] = ()
    """The form at each place, for `with_forms`; what is not named stays as it is."""

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
        if bool(self.forms) != (self.transformation == "with_forms"):
            raise PlanError("rewrite.forms: with_forms needs some, others take none")

    @property
    def code(self) -> str:
        """The line to write before the step is run, one for each place with a form."""
        if self.forms:
            forms = "".join(f"    {one.code},\n" for one in self.forms)
            return (
                "from lagom_jax.decompose import Form, with_forms\n"
                f"step = with_forms(step, {{\n{forms}}})"
            )
        return f"step = lagom_jax.decompose.{self.call}"

    @property
    def call(self) -> str:
        """The transformation and its arguments."""
        if self.forms:
            return f"with_forms(step, {{{', '.join(one.code for one in self.forms)}}})"
        asks = self.transformation == "sliced" and not self.whole_sums
        sums = ", whole_sums=False" if asks else ""
        return f"{self.transformation}(step, slices={self.slices}{sums})"
