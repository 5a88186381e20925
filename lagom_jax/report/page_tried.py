"""The part of a page on what was tried, and what became of it."""

from __future__ import annotations

from lagom_jax.markup import LONGEST_NAME, Html, joined, printable, tag
from lagom_jax.plan import Lever, Plan, PlanCandidate, SiteSetting
from lagom_jax.report.page_tables import table
from lagom_jax.units import (
    counted,
    in_bytes,
    in_seconds,
    in_signed_bytes,
    in_signed_seconds,
)

_LONGEST_REASON = 600
_CANDIDATES = (
    "candidate",
    "status",
    "step",
    "with settings",
    "memory",
    "compile",
    "reason",
)
_LEVERS = ("lever", "value", "changed", "step", "memory", "keeps rounding", "why")
_SETTINGS = ("collectives", "sites", "NCCL's own", "chosen", "keeps rounding", "why")


def tried(plan: Plan | None) -> Html | None:
    """Levers, candidates and settings, each with what became of it."""
    if plan is None:
        return None
    evidence = plan.evidence
    parts: list[Html] = [
        tag(
            "p",
            f"{counted(evidence.compiles, 'compile')}, "
            f"{in_seconds(evidence.seconds)} to decide (measured). With all "
            f"communication hidden the step would take "
            f"{in_seconds(evidence.bound_seconds)} ({evidence.bound}).",
        )
    ]
    if evidence.candidates:
        parts += [
            tag("h3", "Programs"),
            table("Candidates", _CANDIDATES, map(_candidate, evidence.candidates)),
        ]
    if plan.levers:
        title = "What the compiler is told"
        about = (
            "Each change is between two candidates that differ in this alone, each "
            "with NCCL's best settings for it; they are not from one start, and do not "
            "add up."
        )
        parts += [
            tag("h3", title),
            tag("p", about),
            table(title, _LEVERS, map(_lever, plan.levers)),
        ]
    if plan.settings:
        title = "What NCCL is told"
        parts += [
            tag("h3", title),
            tag(
                "p",
                "Algorithm / protocol / channels / threads / bytes of a chunk. Can be "
                f"told: {plan.controls.meaning}.",
            ),
            table(title, _SETTINGS, map(_setting, plan.settings)),
        ]
    return joined(parts)


def _candidate(one: PlanCandidate) -> tuple[object, ...]:
    kind = f"status {one.status.replace(' ', '-')}"
    return (
        printable(one.name, LONGEST_NAME),
        tag("span", one.status, class_=kind),
        _maybe(one.step_seconds),
        _maybe(one.tuned_seconds),
        "" if one.peak_bytes is None else in_bytes(one.peak_bytes),
        _maybe(one.compile_seconds or None),
        printable(one.reason, _LONGEST_REASON),
    )


def _lever(lever: Lever) -> tuple[object, ...]:
    changed = (
        lever.changed or "nothing" if lever.accepted else "refused by the compiler"
    )
    step, peak = lever.step_change, lever.peak_change
    return (
        lever.name,
        "" if lever.value is None else str(lever.value),
        printable(changed, _LONGEST_REASON),
        # No candidate was compiled without this one alone.
        ("together" if lever.accepted else "")
        if step is None
        else in_signed_seconds(step),
        "" if peak is None else in_signed_bytes(peak),
        _yes(lever.keeps_order),
        printable(lever.why, _LONGEST_REASON),
    )


def _setting(one: SiteSetting) -> tuple[object, ...]:
    return (
        f"{one.kind} of {in_bytes(one.bytes)} over {one.ranks}",
        str(len(one.sites)),
        str(one.usual),
        str(one.setting),
        _yes(one.keeps_order),
        printable(one.why, _LONGEST_REASON),
    )


def _yes(keeps: bool) -> str:
    return "yes" if keeps else "may not"


def _maybe(seconds: float | None) -> str:
    return "" if seconds is None else in_seconds(seconds)
