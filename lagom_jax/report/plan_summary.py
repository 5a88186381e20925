"""A plan in three lines, for the log of a job."""

from __future__ import annotations

from lagom_jax.plan import Plan
from lagom_jax.report.intervals import before_and_after, gain_in_words
from lagom_jax.units import counted, in_percent


def summary(plan: Plan, how: str) -> str:
    """The plan in three lines.

    Args:
        plan: The plan.
        how: Where it comes from.
    """
    evidence = plan.evidence
    before, after = evidence.default.step_seconds, evidence.tuned.step_seconds
    share = evidence.recovered
    recovered = f", {in_percent(share, 1)} of what could be won" if share else ""
    first = (
        f"{plan.holds_for.program} on {plan.holds_for.cluster}: predicted "
        f"{before_and_after(before, after, evidence.uncertainty, '->')} a step; "
        f"{gain_in_words(before, after, evidence.uncertainty)}"
        f"{recovered}; {how}"
    )
    levers = ", ".join(
        lever.name.removeprefix("xla_gpu_")
        if lever.value is None or lever.value is True
        else f"{lever.name.removeprefix('xla_gpu_')}={lever.value}"
        for lever in plan.levers
        if lever.accepted
    )
    second = f"the compiler is told: {levers or 'nothing'}"
    told = "nothing"
    if plan.settings:
        told = f"{counted(len(plan.settings), 'setting')} of its own"
    third = f"NCCL is told: {told}"
    return "\n  ".join((first, second, third))
