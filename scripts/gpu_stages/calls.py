"""Calls of NCCL, each with what was asked for and what NCCL's log says."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Final

from gpu_stages.stage import Check, Outcome

_MOST_FINDINGS: Final = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """One call."""

    name: str
    """Its function and its bytes."""
    when: str
    """The circumstances, which have a check of their own: `in windows`."""
    asked: str
    logged: str
    """NCCL's words."""
    why: str = ""
    """The difference; empty if it ran as asked."""


def outcome_of(
    calls: Sequence[Call],
    release: str,
    *,
    failed: Sequence[str] = (),
    left_out: Sequence[str] = (),
) -> Outcome:
    """The answer that calls give.

    Args:
        calls: All that are judged.
        release: Of NCCL.
        failed: What ended the calls, if something did.
        left_out: Calls that are not judged, and why.
    """
    wrong = [call for call in calls if call.why]
    name, missed = f"NCCL {release}", Counter(call.when for call in wrong)
    checks = [
        Check(f"calls {when}, of {count}, that {name} runs otherwise", missed[when], 0)
        for when, count in Counter(call.when for call in calls).items()
    ]
    if failed:
        checks.append(Check("failures of NCCL", len(failed), 0))
    return Outcome(
        checks=tuple(checks),
        findings=(
            *failed,
            *(
                f"NCCL was asked to run {call.name} {call.when} by {call.asked}, and "
                f"logs: {call.logged} ({call.why})."
                for call in wrong[:_MOST_FINDINGS]
            ),
        ),
        left_out=tuple(left_out),
    )
