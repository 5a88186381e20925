"""A lower bound of the step's time, whatever overlaps with what."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import Literal

from lagom_jax.cost.timeline import Timeline

NOT_A_LINK = "latency"
"""Name of the limit of a collective that no link limits."""


@dataclasses.dataclass(frozen=True, slots=True)
class Bound:
    """A time that no plan can beat without changing the program's own work."""

    seconds: float
    what: Literal["computation alone", "the busiest link alone"]


def bound_of(timeline: Timeline) -> Bound:
    """The larger of all kernels alone and of the busiest link alone.

    A link is busy for as long as its bytes take at its full rate. Options that take
    work out of a program (fewer copies, say) may go below the first.

    Args:
        timeline: The step as it is.

    Example:
        >>> from lagom_jax.cost.timeline import Totals
        >>> bound_of(Timeline(Totals(), {}, {}))
        Bound(seconds=0.0, what='computation alone')
    """
    totals = timeline.totals
    computation = totals.compute_seconds - totals.contention_seconds
    links: defaultdict[str, float] = defaultdict(float)
    for collective, figures in timeline.collectives().items():
        price = timeline.prices[collective]
        if price.bound != NOT_A_LINK:
            links[price.bound] += figures.alone_seconds * price.resource_share
    busiest = max(links.values(), default=0.0)
    if busiest > computation:
        return Bound(busiest, "the busiest link alone")
    return Bound(computation, "computation alone")
