"""Rewritten steps that are compiled once each, to see which are worth a plan."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final, NamedTuple

from lagom_jax.options import Idea
from lagom_jax.options.off_rings import MODES, SYMMETRIC
from lagom_jax.plan import Plan
from lagom_jax.plan.evidence import COSTS
from lagom_jax.plan.rewrite import SiteRefusal
from lagom_jax.planner.request import Request
from lagom_jax.planner.rewrite_ways import RewriteWay, apart

if TYPE_CHECKING:
    from lagom_jax.planner.make import Planner
    from lagom_jax.planner.run import Finished

_LEVERS: Final = ("options", "order", "settings")
_NOT_SHARED: Final = frozenset({COSTS, SYMMETRIC, *MODES.values()})
"""Costs are of one program, and what takes collectives off the rings is decided beside
a plan without it."""
_IN_REACH: Final = 1.2
"""No plan makes more of a step than this times shorter than a look says."""


class Look(NamedTuple):
    """A rewritten step that was compiled once."""

    way: RewriteWay
    """Without the places that cannot have their forms."""
    name: str
    planner: Planner
    lines: tuple[str, ...]
    """The lines that are cut."""
    left: tuple[SiteRefusal, ...]
    plan: Plan
    """A plan of this one compile."""
    seconds: float
    """The step in the order that a short search finds for it."""

    def may_beat(self, seconds: float) -> bool:
        """True if a plan for it may be shorter than so long."""
        return (
            self.plan.evidence.bound_seconds < seconds
            and self.seconds < _IN_REACH * seconds
        )


def look_request(request: Request, written: Finished, way: RewriteWay) -> Request:
    """A request for one compile, under the options of the plan that there is already.

    Args:
        request: Of plans for rewritten steps.
        written: The candidates of the plan for the step as it is written.
        way: How the step is rewritten.
    """
    begin = apart(way, deterministic=request.deterministic)
    options = {
        name: value
        for name, value in written.taken.asked.options.items()
        if name not in _NOT_SHARED and name not in begin.options
    }
    why = "what helps the step as it is written mostly helps it in another form"
    like = Idea("as the plan for the step as it is written", options, why, 0.0)
    return dataclasses.replace(
        request,
        levers=tuple(one for one in request.levers if one in _LEVERS),
        budget=dataclasses.replace(request.budget, compiles=1),
        begin_with=(like, begin) if options else (begin,),
    )
