"""Reasons why no plan may be made of what was compiled."""

from __future__ import annotations

from lagom_jax.order.streams import meet_and_clash
from lagom_jax.plan.evidence import Status
from lagom_jax.plan.order import APPLIED, NOT_MET, OrderOutcome
from lagom_jax.planner.judge import Judge
from lagom_jax.planner.trial import Trial
from lagom_jax.units import counted, in_bytes


def why_not(
    trial: Trial, outcome: OrderOutcome | None, memory_limit: int, judge: Judge
) -> tuple[Status, str] | None:
    """The status of a candidate that cannot be used, and why; None for others.

    Args:
        trial: The candidate.
        outcome: What became of the order that it was compiled in; None for XLA's own.
        memory_limit: Bytes on a device that it may take.
        judge: What looked at it.

    Example:
        >>> from lagom_jax.cluster import Cluster
        >>> from lagom_jax.planner.trial import Asked
        >>> from lagom_jax.settings.controls import named
        >>> judge = Judge(Cluster.parse("h100:1x8"), named("tuner"))
        >>> trial = Trial(Asked(), "ok", "", 1.0)
        >>> why_not(trial, OrderOutcome("not met"), 1 << 30, judge)
        ('failed', 'the order was not taken: XLA made another schedule each time')
    """
    view, peak = trial.view, trial.peak_bytes
    if view is not None and peak is not None and peak > memory_limit:
        reason = f"takes {in_bytes(peak)}, and may {in_bytes(memory_limit)}"
        if outside := view.scheduled.symmetric_bytes:
            reason += f"; {in_bytes(outside)} of it symmetric memory"
        return "over memory", reason
    if outcome is None:
        return None
    if outcome == NOT_MET:
        return "failed", "the order was not taken: XLA made another schedule each time"
    if outcome != APPLIED:
        return "failed", f"the order was not taken: {outcome}"
    if view is not None and meet_and_clash(view.program):
        why = "collectives with devices in common meet on different streams"
        return "failed", why
    if view is not None and (lacking := judge.sms_lacking(view)):
        return "failed", (
            f"collectives of both streams hold up to {counted(lacking, 'SM')} more "
            "than the GPU has: a circle of devices could wait for each other"
        )
    return None
