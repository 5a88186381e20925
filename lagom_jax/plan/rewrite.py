"""A transformation of a step's own program, as a plan names it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final, Literal

from lagom_jax.errors import DecomposeError, PlanError
from lagom_jax.plan.form import Form

When = Literal["", "forward", "backward"]
"""A pass of a step; empty for both. Where a layer runs again for its gradients, that is
a part of the second."""
LEFT_TO_PARTITIONER: Final = "dot_general"
"""jax's primitive at the places of collectives that the partitioner makes."""
TRANSPOSED: Final = "transpose("
"""The word that jax writes into the names of all that computes gradients."""
TRANSFORMATIONS = {"sliced": 2, "rings": 1, "half_batch_loops": 2, "with_forms": 1}
"""Functions of `lagom_jax.decompose`, with the least slices that they cut into."""


@dataclasses.dataclass(frozen=True, slots=True)
class CollectiveCut:
    """A place where collectives stand next to matmuls, and the best form for it.

    Example:
        >>> CollectiveCut("ag.1", 2, "all-gather", "a.py:3", "dot.2", Form("ring"),
        ...     "a.py:3", "", 1e-3, 64).pays
        True
    """

    collective: str
    """Its most exposed one, as the schedule names it that this is said of."""
    collectives: int
    """All that the same lines lead to: one form holds for them."""
    kind: str
    source: str
    """The user's line, `file:line`; empty where the compiler dropped it."""
    matmul: str
    """The name of the matmul next to that collective."""
    form: Form
    """The best of the forms that `with_forms` can give."""
    line: str
    """The line that `with_forms` takes for this place; empty where nothing pays, or
    none is known."""
    when: When
    """The pass that it takes with the line; empty where the line alone says which."""
    saved_seconds: float
    """Seconds of a step less, at most; 0 or less where nothing pays."""
    memory_bytes: int
    """Bytes of slices on their way: one to send and one to receive."""

    @property
    def where(self) -> str:
        """Its line in a few words, with the pass where that has to be said."""
        line = self.line or self.source.rpartition("/")[2]
        return f"{line}, {self.when}" if self.when else line

    @property
    def pays(self) -> bool:
        """True if the cut would make the step shorter."""
        return self.saved_seconds > 0.0


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
    """jax's primitive: `all_gather`, `reduce_scatter`, `psum`, or `dot_general` for a
    matmul whose collectives are left to the partitioner."""
    form: Form
    when: When = ""
    """The pass; empty for both."""

    @property
    def key(self) -> tuple[str, str] | tuple[str, str, When]:
        """The place as `with_forms` takes it."""
        place = self.line, self.kind
        return (*place, self.when) if self.when else place

    @property
    def code(self) -> str:
        """The same as an entry of a dict."""
        key = ", ".join(f'"{part}"' for part in self.key)
        return f"({key}): {self.form.code}"


Why = Literal[
    "no collective",
    "no site",
    "not along it",
    "left to the partitioner",
    "not in blocks",
    "not in chunks",
    "no matmul",
    "summed over",
    "no rows",
    "needed whole",
]
_WHY: Final[Mapping[Why, str]] = {
    "no collective": "the function has no such collective of its own there",
    "no site": "no collective of the function's own is there, and no matmul whose "
    "collectives are left to the partitioner",
    "not along it": "it has no part in the dimension that is cut",
    "left to the partitioner": "what the partitioner communicates can be in chunks, "
    "and not sent around",
    "not in blocks": "it is not tiled over all ranks of one mesh axis",
    "not in chunks": "a sum that all ranks get can be in chunks, and not sent around",
    "no matmul": "no matmul takes what it gathers, or makes alone what it adds up",
    "summed over": "the matmul sums over what is gathered",
    "no rows": "the matmul's result has no rows to cut",
    "needed whole": "something takes it whole before a matmul does",
}


@dataclasses.dataclass(frozen=True, slots=True)
class SiteRefusal:
    """A form that the collectives at one place cannot have.

    Example:
        >>> SiteRefusal("a.py:3", "psum", Form("ring"), "not in chunks", "").words
        'psum at a.py:3 as ring: a sum that all ranks get can be in chunks, and not sent
        around'
    """

    line: str
    """The line of the user's source."""
    kind: str
    """jax's primitive; empty where the line alone was named, and has none."""
    form: Form
    why: Why
    at: str
    """The line of the matmul, or of what is in the way; empty where none is known."""
    partly: bool = False
    """True if other collectives of that place have the form."""
    when: When = ""
    """The pass, where it was named."""

    @property
    def words(self) -> str:
        """The same in words."""
        there = f" ({self.at})" if self.at else ""
        kind = f"{self.kind} at " if self.kind else ""
        kind = f"{self.when} {kind}" if self.when else kind
        return f"{kind}{self.line} as {self.form.label}: {_WHY[self.why]}{there}"


class NoFormError(DecomposeError):
    """Places cannot have the forms that were asked for.

    Attributes:
        left: Each of them.
    """

    def __init__(self, message: str, left: tuple[SiteRefusal, ...]) -> None:
        """Takes the message and the places."""
        super().__init__(message)
        self.left = left


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
    only: tuple[str, ...] = ()
    """The lines that are cut, for `sliced`; all where none is named."""

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
        if self.only and self.transformation != "sliced":
            raise PlanError("rewrite.only: sliced alone takes lines")

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
        lines = ", ".join(f'"{line}"' for line in self.only)
        only = f", sites=[{lines}]" if lines else ""
        return f"{self.transformation}(step, slices={self.slices}{sums}{only})"
