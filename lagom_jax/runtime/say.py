"""Log messages of the wrapper: a summary per plan, each reason to fall back once."""

from __future__ import annotations

import logging
import threading
import warnings
from typing import Final

from lagom_jax.plan import Plan
from lagom_jax.units import counted, in_percent, in_seconds

LOG: Final = logging.getLogger("lagom_jax")
_said: set[str] = set()
_lock = threading.Lock()


class LagomWarning(UserWarning):
    """The program as it was runs, and why."""


def warn_once(reason: str, *, first: bool) -> None:
    """Warns, unless this process has said so before or another one does.

    Args:
        reason: Why, and what can be done.
        first: Whether this is the job's first process.
    """
    with _lock:
        if reason in _said:
            return
        _said.add(reason)
    if first:
        warnings.warn(f"lagom_jax: {reason}", LagomWarning, stacklevel=2)
    else:
        LOG.debug("%s", reason)


def forget() -> None:
    """Forgets the messages, so that each may be logged again."""
    with _lock:
        _said.clear()


def summary(plan: Plan, how: str) -> str:
    """A plan in three lines.

    Args:
        plan: The plan.
        how: Where it comes from.
    """
    evidence = plan.evidence
    before, after = evidence.default.step_seconds, evidence.tuned.step_seconds
    gain = before - after
    possible = before - evidence.bound_seconds
    recovered = f", {in_percent(gain, possible)} of what could be won" if gain else ""
    first = (
        f"{plan.holds_for.program} on {plan.holds_for.cluster}: predicted "
        f"{in_seconds(before)} -> {in_seconds(after)} a step{recovered}; {how}"
    )
    levers = ", ".join(
        lever.name.removeprefix("xla_gpu_")
        if lever.value is None or lever.value is True
        else f"{lever.name.removeprefix('xla_gpu_')}={lever.value}"
        for lever in plan.levers
        if lever.accepted
    )
    second = f"the compiler is told: {levers or 'nothing'}"
    third = f"NCCL is told: {_told(plan)}"
    return "\n  ".join((first, second, third))


def _told(plan: Plan) -> str:
    if not plan.settings:
        return "nothing"
    return f"{counted(len(plan.settings), 'setting')} of its own"
