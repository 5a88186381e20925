"""A step as it is, a plan for it, and the step with the plan: what pages tell."""

from __future__ import annotations

import dataclasses

from lagom_jax.errors import LagomError
from lagom_jax.markup import LONGEST_NAME, printable
from lagom_jax.plan import Plan
from lagom_jax.report.figures import Report


class PageError(LagomError):
    """A page, a trace or a picture cannot be written."""


@dataclasses.dataclass(frozen=True, slots=True)
class Story:
    """A step as it is, a plan for it, and the step with the plan.

    Any of the three may be missing: a report has no plan, and a plan alone has no
    timeline.
    """

    before: Report | None = None
    after: Report | None = None
    plan: Plan | None = None
    subject: str = ""
    """The step, as the command line names it."""
    options: tuple[str, ...] = ()
    """The words of the command line that say which variant of it."""

    @property
    def title(self) -> str:
        """The step and the cluster."""
        name = "Nothing"
        if self.before is not None:
            name = self.before.program
        elif self.plan is not None:
            name = self.plan.holds_for.program
        return f"{printable(name, LONGEST_NAME)} on {self.cluster or 'nothing'}"

    @property
    def cluster(self) -> str:
        """The name of the cluster."""
        if self.before is not None:
            return self.before.cluster
        return self.plan.holds_for.cluster if self.plan is not None else ""
