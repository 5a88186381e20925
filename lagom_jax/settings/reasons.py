"""Reasons of the settings of groups of collectives, in words."""

from __future__ import annotations

import dataclasses

from lagom_jax.plan.interval import Interval
from lagom_jax.units import in_seconds, in_signed_seconds

_NOTHING = 1e-6


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """Differences that a choice makes, in seconds of a step; less is better."""

    communication: float
    """The group's collectives."""
    computation: float
    """The kernels in its windows."""
    step: float
    most_to_win: float
    """An upper bound of the gain by any further setting of it."""
    exposed: float
    """Before the choice, in its windows."""
    contention: float
    """Likewise: what collectives cost the kernels there."""


def reason(
    change: Change, region: str, *, changed: bool, drowned: Interval | None = None
) -> str:
    """Reason why a group is set as it is.

    Args:
        change: What the choice changes.
        region: Where Lagom found it; empty for another policy.
        changed: False where the group was left alone.
        drowned: Seconds that a setting would give, where that is not certain.

    Example:
        >>> change = Change(2e-3, -5e-3, -5e-3, 0.0, 0.0, 6e-3)
        >>> print(reason(change, "hidden", changed=True))
        slower but hidden: 2.00 ms more communication gives 5.00 ms of computation back
    """
    if drowned is not None:
        return (
            f"left alone: the best setting gives {in_seconds(drowned.expected)}, which "
            "is not certain: most models say between "
            f"{in_signed_seconds(-drowned.high)} and {in_signed_seconds(-drowned.low)}"
        )
    if not changed:
        return _left_alone(change, region)
    spent, gained = change.communication, -change.computation
    time, work = in_seconds(abs(spent)), in_seconds(abs(gained))
    stays = "slower but hidden" if region == "hidden" else "slower but less in the way"
    if spent > 0 and gained > 0:
        return f"{stays}: {time} more communication gives {work} of computation back"
    if spent <= 0 and gained >= 0:
        return (
            f"faster by {time}, and computation gets {work} back: "
            "NCCL's own choice was not the best for either"
            if gained > 0
            else f"faster by {time}, at no cost to computation"
        )
    if spent <= 0:
        waited_for = (
            "since compute stands still in its windows"
            if change.exposed > 0
            else "though compute never stood still for it"
        )
        return f"faster by {time}, for {work} of computation, {waited_for}"
    outcome = (
        f"and yet the step is shorter by {in_seconds(-change.step)}"
        if change.step < 0
        else "and the step no shorter"
    )
    return f"{time} more communication, {work} more computation, {outcome}"


def _left_alone(change: Change, region: str) -> str:
    if change.exposed <= 0 and change.contention <= 0:
        return "left alone: it is hidden and costs the kernels beside it nothing"
    if change.most_to_win < _NOTHING:
        return "left alone: no setting could win anything"
    # Only Lagom looked for what makes the step shorter.
    sought = "nothing found was worth a change, and " if region else ""
    return (
        f"left alone: {sought}no setting could win more than "
        f"{in_seconds(change.most_to_win)}"
    )
