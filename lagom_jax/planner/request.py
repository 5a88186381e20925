"""Requests for a plan: the levers, controls and budget that it may use."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

from lagom_jax.errors import LagomError
from lagom_jax.options import Idea
from lagom_jax.plan import Plan
from lagom_jax.planner.budget import Budget
from lagom_jax.planner.regret import Scored
from lagom_jax.settings.controls import Controls

LEVERS: Final = ("options", "transports", "costs", "order", "streams", "settings")
"""The levers of a plan: XLA's options, those of them that take collectives off the
rings (with a policy of the process), our costs as its profile, another order of
instructions and in it a second stream for collectives, NCCL's settings."""


class LeverError(LagomError, ValueError):
    """No such lever."""


def _unheard(what: str) -> None:
    del what


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """A request for a plan of a step that is known already.

    Example:
        >>> Request().budget.compiles
        8
        >>> Request(("magic",))
        Traceback (most recent call last):
        ...
        lagom_jax.planner.request.LeverError: no lever 'magic'; known are options,
        transports, costs, order, streams, settings
    """

    levers: tuple[str, ...] = LEVERS
    """The ones that may be used."""
    controls: str | Controls = "tuner"
    """The parts of a setting that can be set, as for `find_settings`."""
    budget: Budget = dataclasses.field(default_factory=Budget)
    """Limits of compiles, time and memory."""
    deterministic: bool = False
    """Leaves out what may change the rounding of sums."""
    compare_recipes: bool = False
    """Compiles what others recommend, too, beyond the budget."""
    progress: Callable[[str], None] = _unheard
    """Called with a line for each thing that is done."""
    keep: Callable[[Plan], None] | None = None
    """Called with the best plan so far after each candidate."""
    begin_with: tuple[Idea, ...] = ()
    """Options that the step is compiled with from the first, because it is written for
    them; what the user has set stays."""

    not_behind: Scored | None = None
    """Times that the step's should be behind by no model of the ensemble."""

    def __post_init__(self) -> None:
        """Checks the levers."""
        if unknown := set(self.levers) - set(LEVERS):
            raise LeverError(
                f"no lever {min(unknown)!r}; known are {', '.join(LEVERS)}"
            )
