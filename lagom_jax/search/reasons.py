"""Why a group of collectives is set as it is, in words."""

from __future__ import annotations

import dataclasses

_NOTHING = 1e-6


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """What a choice changes, in seconds of a step; less is better."""

    communication: float
    """The group's collectives."""
    computation: float
    """The kernels in its windows."""
    step: float
    most_to_win: float
    """What no setting of it could exceed, from where the choice has led."""
    exposed: float
    """Before the choice, in its windows."""
    contention: float
    """Likewise: what collectives cost the kernels there."""


def reason(change: Change, region: str, *, changed: bool) -> str:
    """Why a group is set as it is.

    Args:
        change: What the choice changes.
        region: Where Lagom found it; empty for another policy.
        changed: False where the group was left alone.

    Example:
        >>> reason(Change(2e-3, -5e-3, -5e-3, 0.0, 0.0, 6e-3), "hidden", changed=True)
        'slower but hidden: 2 ms more communication gives 5 ms of computation back'
    """
    if not changed:
        return _left_alone(change, region)
    spent, gained = change.communication, -change.computation
    stays = "slower but hidden" if region == "hidden" else "slower but less in the way"
    if spent > 0 and gained > 0:
        return (
            f"{stays}: {_time(spent)} more communication gives {_time(gained)} of "
            "computation back"
        )
    if spent <= 0 and gained >= 0:
        return (
            f"faster by {_time(-spent)}, and computation gets {_time(gained)} back: "
            "NCCL's own choice was not the best for either"
            if gained > 0
            else f"faster by {_time(-spent)}, at no cost to computation"
        )
    if spent <= 0:
        waited_for = (
            "since compute stands still in its windows"
            if change.exposed > 0
            else "though compute never stood still for it"
        )
        return (
            f"faster by {_time(-spent)}, for {_time(-gained)} of computation, "
            f"{waited_for}"
        )
    outcome = (
        f"and yet the step is shorter by {_time(-change.step)}"
        if change.step < 0
        else "and the step no shorter"
    )
    return (
        f"{_time(spent)} more communication, {_time(-gained)} more computation, "
        f"{outcome}"
    )


def _left_alone(change: Change, region: str) -> str:
    if change.exposed <= 0 and change.contention <= 0:
        return "left alone: it is hidden and costs the kernels beside it nothing"
    if change.most_to_win < _NOTHING:
        return "left alone: no setting could win anything"
    # Only Lagom looked for what makes the step shorter.
    sought = "nothing found was worth a change, and " if region else ""
    return (
        f"left alone: {sought}no setting could win more than "
        f"{_time(change.most_to_win)}"
    )


def _time(seconds: float) -> str:
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(seconds) >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds * 1e9:.3g} ns"
