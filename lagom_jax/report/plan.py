"""A plan for a terminal: its gain, its options and settings, and its evidence."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from lagom_jax.plan import (
    CollectiveCut,
    HoldsFor,
    Lever,
    MeasuredSteps,
    Plan,
    PlanCandidate,
    Rewrite,
    SiteSetting,
)
from lagom_jax.plan.evidence import COSTS, ORDER
from lagom_jax.report.intervals import (
    MODELS_IN_WORDS,
    before_and_after,
    gain_in_words,
)
from lagom_jax.report.layout import WIDTH, as_text, listing
from lagom_jax.report.tuning import parts_of_step, ranks_in_words, setting_in_words
from lagom_jax.units import (
    counted,
    in_bytes,
    in_percent,
    in_seconds,
    in_signed_bytes,
    in_signed_seconds,
)

_EXPLAINED = 8
_STYLES: Final[Mapping[str, str]] = {
    "chosen": "bold green",
    "ok": "green",
    "failed": "red",
}
_FINGERPRINT = 12


def render_plan(
    plan: Plan, *, rows: int | None = None, width: int = WIDTH
) -> RenderableType:
    """The plan as something rich can print.

    Args:
        plan: What to show.
        rows: How many groups of collectives to list; None for all.
        width: Columns of the screen; on a narrow one the least needed are left out.
    """
    parts: list[RenderableType] = [_headline(plan), _levers(plan, width)]
    if plan.evidence.candidates:
        parts += [_candidates(plan, width), Text()]
    parts.append(_settings(plan, rows, width))
    if plan.cuts:
        parts += [_cuts(plan, rows, width), Text()]
    if plan.variables or plan.needs or plan.refusals:
        parts.append(_process(plan))
    parts.append(_holds_for(plan.holds_for))
    parts.extend(Text(f"note: {note}", style="yellow") for note in plan.notes)
    parts.append(
        Text(f"All times of steps are predicted. Prices: {plan.pricing}", "dim")
    )
    return Group(*parts)


def plan_to_text(plan: Plan, *, width: int = WIDTH) -> str:
    """The plan as plain text."""
    return as_text(render_plan(plan, width=width), width)


def in_words(found: MeasuredSteps) -> str:
    """The measurements of a job, in a line.

    Example:
        >>> in_words(MeasuredSteps(0.4, 0.35, 0.01, 12, True))
        'measured 400 ms a step before and 350 ms with the plan (-50.0 ms, noise
        10.0 ms): the plan stays'
    """
    change = in_signed_seconds(found.tuned_seconds - found.baseline_seconds)
    return (
        f"measured {in_seconds(found.baseline_seconds)} a step before and "
        f"{in_seconds(found.tuned_seconds)} with the plan ({change}, noise "
        f"{in_seconds(found.noise_seconds)}): "
        + ("the plan stays" if found.kept else "the program as it was runs")
    )


def _rewrite(rewrite: Rewrite) -> Text:
    """The line of code that the plan needs, and what it brings."""
    text = Text("  for the step rewritten: ")
    text.append(f"{rewrite.code}\n", "bold")
    change = in_signed_seconds(rewrite.step_change)
    memory = (
        ""
        if rewrite.peak_change is None
        else f", {in_signed_bytes(rewrite.peak_change)} of memory"
    )
    text.append(f"    {change} beside the best plan for it as it is{memory}\n")
    if rewrite.sites:
        text.append(f"    collectives that it cuts: {', '.join(rewrite.sites)}\n")
    return text


def _headline(plan: Plan) -> Text:
    evidence = plan.evidence
    text = Text()
    text.append(plan.holds_for.program, "bold")
    text.append(
        f" on {plan.holds_for.cluster} ({counted(plan.holds_for.devices, 'device')})"
        "\n\n"
    )
    times = (
        evidence.default.step_seconds,
        evidence.tuned.step_seconds,
        evidence.uncertainty,
    )
    text.append(f"  predicted step {before_and_after(*times)}", "bold")
    colour = "bold green" if plan.speedup >= 1 else "bold red"
    text.append(f"; {gain_in_words(*times)}\n", colour)
    if evidence.uncertainty is not None:
        text.append(f"  {MODELS_IN_WORDS}\n", "dim")
    text.append(
        f"  with all communication hidden, as free of charge, the program as it was "
        f"takes {in_seconds(evidence.bound_seconds)} ({evidence.bound})"
    )
    recovered = evidence.recovered
    if recovered is not None and recovered > 0:
        text.append(f"; {in_percent(recovered, 1)} of that gain is reached")
    text.append("\n")
    text.append_text(parts_of_step(evidence.default, evidence.tuned))
    if evidence.default_peak is not None or evidence.tuned_peak is not None:
        peaks = f"{_bytes(evidence.default_peak)} → {_bytes(evidence.tuned_peak)}"
        text.append(f"  {'memory at the fullest':<22} {peaks}")
        if evidence.memory_limit is not None:
            text.append(f" of {in_bytes(evidence.memory_limit)} that JAX may take")
        text.append("\n")
    text.append(
        f"  {counted(evidence.compiles, 'compile')}, "
        f"{in_seconds(evidence.seconds)} to decide (measured)\n"
    )
    if plan.rewrite is not None:
        text.append_text(_rewrite(plan.rewrite))
    if evidence.measured is not None:
        text.append(f"  a job has {in_words(evidence.measured)}\n")
    return text.append_text(_rounding(plan))


def rounding_in_words(plan: Plan) -> str:
    """The parts of a plan by which sums may round differently; empty for none.

    Args:
        plan: The plan.
    """
    may = [one.name for one in plan.levers if one.accepted and not one.keeps_order]
    kinds = {one.kind: None for one in plan.settings if not one.keeps_order}
    may += [f"NCCL's settings for {kind}" for kind in kinds]
    return f"sums may round differently: {', '.join(may)}" if may else ""


def _rounding(plan: Plan) -> Text:
    if words := rounding_in_words(plan):
        return Text(f"  {words}\n", "yellow")
    return Text("  nothing here changes the order of reductions\n", "green")


def _bytes(count: int | None) -> str:
    return "not known" if count is None else in_bytes(count)


def _levers(plan: Plan, width: int) -> RenderableType:
    if not plan.levers:
        return Text("  the compiler is told nothing\n")
    listed = listing(
        "Levers: what the compiler is told (predicted)",
        _LEVERS,
        _said_once(plan.levers),
        spare=_SPARE_OF_LEVERS,
        width=width,
    )
    return Group(
        listed, Text(), *_whys((one.name, one.why) for one in plan.levers), Text()
    )


def _said_once(levers: Iterable[Lever]) -> list[Lever]:
    """The levers, without long words that stand a row above already."""
    found: list[Lever] = []
    last = ""
    for lever in levers:
        if lever.changed and lever.changed == last:
            found.append(dataclasses.replace(lever, changed="as above"))
        else:
            found.append(lever)
            last = lever.changed
    return found


def _candidates(plan: Plan, width: int) -> RenderableType:
    found = plan.evidence.candidates
    listed = listing(
        "Candidates (steps are predicted, compiles measured)",
        _CANDIDATES,
        found,
        spare=_SPARE_OF_CANDIDATES,
        width=width,
    )
    alike: dict[tuple[str, str], list[str]] = {}
    for one in found:
        if one.reason:
            alike.setdefault((one.status, one.reason), []).append(one.name)
    whys = _whys(
        (names[0] if len(names) == 1 else f"{len(names)} {status}", reason)
        for (status, reason), names in alike.items()
    )
    left = dict.fromkeys(place.words for one in found for place in one.left)
    whys += _whys(("stays as it is", words) for words in left)
    return Group(listed, *([Text(), *whys] if whys else []))


def _settings(plan: Plan, rows: int | None, width: int) -> RenderableType:
    can = Text(f"Can be told: {plan.controls}\n", "dim")
    if not plan.settings:
        return Group(Text("  NCCL is told nothing: its own choices stay"), can)
    shown = plan.settings if rows is None else plan.settings[:rows]
    listed = listing(
        "Settings: what NCCL is told",
        _SETTINGS,
        shown,
        spare=_SPARE_OF_SETTINGS,
        width=width,
    )
    left = len(plan.settings) - len(shown)
    more = [Text(f" and {left} more: --rows all", "dim")] if left else []
    whys = _whys(
        (f"{one.kind} {in_bytes(one.bytes)} over {one.ranks}", one.why) for one in shown
    )
    return Group(listed, *more, Text(), *whys, can)


def _cuts(plan: Plan, rows: int | None, width: int) -> RenderableType:
    """Places where another form of the program would hide collectives."""
    return listing(
        "Collectives to cut with the matmul next to them, beyond this plan (predicted)",
        _CUTS,
        plan.cuts if rows is None else plan.cuts[:rows],
        spare=_SPARE_OF_CUTS,
        width=width,
    )


def _whys(reasons: Iterable[tuple[str, str]]) -> list[Text]:
    whys = [
        Text.assemble(" ", (title, "bold"), f": {why}") for title, why in reasons if why
    ]
    more = len(whys) - _EXPLAINED
    rest = [Text(f" and {more} more: --json", "dim")] if more > 0 else []
    return whys[:_EXPLAINED] + rest


def _process(plan: Plan) -> Text:
    """Needs of the process and the installation, and refusals."""
    text = Text()
    if plan.variables or plan.needs:
        text.append("Needs\n", "bold")
    for one in plan.variables:
        without = "nothing runs without it"
        if one.step_without is not None:
            without = f"without it {in_seconds(one.step_without)} a step (predicted)"
        text.append(f"  {one.name}={one.value}: {one.why}; {without}\n")
    needs = plan.needs
    for what, least in (("NCCL", needs.nccl), ("driver for CUDA", needs.cuda_driver)):
        if least:
            text.append(f"  {what} {least} or newer\n")
    if needs.bytes_outside_pool:
        outside = in_bytes(needs.bytes_outside_pool)
        text.append(f"  up to {outside} of symmetric memory beside jax's pool\n")
    if plan.refusals:
        text.append("Stays on rings\n", "bold")
    for refusal in plan.refusals:
        text.append(f"  {refusal}\n")
    return text


def _holds_for(held: HoldsFor) -> Text:
    text = Text()
    text.append("Holds for\n", "bold")
    program = f"{held.program}, fingerprint {held.fingerprint[:_FINGERPRINT]}"
    if held.schedule:
        program += f", schedule {held.schedule[:_FINGERPRINT]}"
    versions = ", ".join(f"{name} {version}" for name, version in held.versions)
    pinned = ", ".join(
        f"{one.name}={one.value} in {one.place}"
        if one.place
        else f"{one.name}={one.value}"
        for one in held.pinned
    )
    for what, words in (
        ("program", program),
        ("cluster", f"{held.cluster}, {counted(held.devices, 'device')}"),
        ("versions", versions or "not known"),
        ("pinned", pinned or "nothing"),
    ):
        text.append(f"  {what:<9}{words}\n")
    return text


def _value(lever: Lever) -> str:
    if lever.name == COSTS:
        return "costs"
    if lever.name == ORDER:
        return "another"
    if isinstance(lever.value, bool):
        return "true" if lever.value else "false"
    return str(lever.value)


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else in_seconds(seconds)


def _step(lever: Lever) -> Text:
    if lever.step_change is None:
        # No candidate was compiled without this one alone.
        return Text("together" if lever.accepted else "", "dim")
    colour = "green" if lever.step_change < 0 else ""
    return Text(in_signed_seconds(lever.step_change), colour)


def _changed(lever: Lever) -> str:
    if not lever.accepted:
        return "refused by the compiler"
    return lever.changed or "nothing"


def _yes(keeps: bool) -> Text:
    return Text("yes") if keeps else Text("may not", "yellow")


_LEVERS: Final[Mapping[str, Callable[[Lever], str | Text]]] = {
    "lever": lambda one: one.name,
    "value": _value,
    "changed": _changed,
    "step": _step,
    "memory": lambda one: (
        "" if one.peak_change is None else in_signed_bytes(one.peak_change)
    ),
    "keeps rounding": lambda one: _yes(one.keeps_order),
}
_SPARE_OF_LEVERS = ("keeps rounding", "memory", "changed", "step")
_CANDIDATES: Final[Mapping[str, Callable[[PlanCandidate], str | Text]]] = {
    "candidate": lambda one: one.name,
    "status": lambda one: Text(one.status, _STYLES.get(one.status, "yellow")),
    "step": lambda one: _seconds(one.step_seconds),
    "with settings": lambda one: _seconds(one.tuned_seconds),
    "memory": lambda one: "" if one.peak_bytes is None else in_bytes(one.peak_bytes),
    "compile": lambda one: _seconds(one.compile_seconds or None),
}
_SPARE_OF_CANDIDATES = ("compile", "memory")
_SETTINGS: Final[Mapping[str, Callable[[SiteSetting], str | Text]]] = {
    "collective": lambda one: one.kind,
    "bytes": lambda one: in_bytes(one.bytes),
    "ranks": lambda one: ranks_in_words(one.kind, one.ranks, one.domains),
    "sites": lambda one: str(len(one.sites)),
    "NCCL's own": lambda one: setting_in_words(one.usual),
    "chosen": lambda one: setting_in_words(one.setting, threads=True),
    "keeps rounding": lambda one: _yes(one.keeps_order),
}
_CUTS: Final[Mapping[str, Callable[[CollectiveCut], str | Text]]] = {
    "collective": lambda one: one.collective,
    "matmul": lambda one: one.matmul,
    "form": lambda one: one.form.label,
    "saves at most": lambda one: in_seconds(one.saved_seconds),
    "memory": lambda one: in_bytes(one.memory_bytes),
    "where": lambda one: one.where,
}
_SPARE_OF_CUTS = ("matmul", "memory")
_SPARE_OF_SETTINGS = ("keeps rounding", "NCCL's own", "sites", "ranks")
