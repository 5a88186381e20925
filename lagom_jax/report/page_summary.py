"""The first lines of a page: what everybody asks, and the parts of the step."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from lagom_jax.markup import LONGEST_NAME, Html, printable, tag
from lagom_jax.plan import Interval, Plan, PlanCandidate
from lagom_jax.plan.evidence import COSTS, ORDER
from lagom_jax.report.alike import AlikeCollectives, alike, short_name
from lagom_jax.report.figures import Report
from lagom_jax.report.intervals import gain_in_words, in_brackets, in_range
from lagom_jax.report.page_tables import table
from lagom_jax.report.plan import rounding_in_words
from lagom_jax.units import (
    counted,
    in_bytes,
    in_percent,
    in_seconds,
    in_signed_bytes,
    in_signed_seconds,
)

_PARTS = (
    ("Step", "step_seconds", "from the first kernel to the end of everything"),
    ("Computation", "compute_seconds", "kernels on the compute stream"),
    ("of it contention", "contention_seconds", "by which communication slows kernels"),
    (
        "Exposed communication",
        "exposed_seconds",
        "the compute stream stands still for a collective, or runs one itself",
    ),
    ("Other waiting", "waiting_seconds", "for copies and kernels on other streams"),
    ("Communication", "communication_seconds", "collectives, hidden or not"),
)


_RANGE = "range"
_RANGE_MEANING = "of nine in ten models, with other constants that measurements allow"
_INTERVALS = {
    "exposed_seconds": "exposed_interval",
    "contention_seconds": "contention_interval",
}
_ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True, slots=True)
class _Figure:
    name: str
    meaning: str
    before: str
    after: str
    change: str
    better: bool | None


def short(
    before: Report | None,
    after: Report | None,
    plan: Plan | None,
    *,
    links: bool = True,
) -> Html:
    """The answers to what everybody asks first.

    Args:
        before: The step as it is.
        after: The step with a plan.
        plan: The plan.
        links: Whether other parts of a page can be pointed to.
    """
    lines: list[Html] = []
    shown = after or before
    if shown is not None and shown.cautions:
        lines.append(
            _line("Caution", [tag("p", one, class_="worse") for one in shown.cautions])
        )
    if before is not None:
        lines += _exposure(before, links=links)
    if plan is not None:
        asked = "What would change that" if before else "What the plan changes"
        lines += _gain(plan, after, asked, links=links)
    elif before is not None:
        lines.append(
            _line(
                "What would change that",
                "Nothing has been tried yet",
                [": see ", tag("a", "what to do", href="#todo")] if links else None,
                ".",
            )
        )
    lines.append(_trust(before, plan, links=links))
    return tag("dl", lines, class_="short")


def _line(question: str, *answer: object) -> Html:
    return tag("div", tag("dt", question), tag("dd", *answer))


def _exposure(report: Report, *, links: bool) -> Iterable[Html]:
    step = report.step_seconds
    yield _line(
        "How long",
        tag("strong", in_seconds(step)),
        f" a step as it is, of which {in_seconds(report.exposed_seconds)} "
        f"({in_percent(report.exposed_seconds, step)}) wait for communication"
        f"{_kind_in_words(report)}.",
    )
    groups = alike(report.collectives)
    if not groups or not groups[0].exposed_seconds:
        yield _line("Exposed most", "Nothing: all communication is hidden.")
        return
    worst = groups[0]
    one = report.collectives[worst.members[0]]
    where = f" at {printable(worst.place, LONGEST_NAME)}" if worst.place else ""
    takes = "it takes" if len(worst.members) == 1 else "they take"
    yield _line(
        "Exposed most",
        tag("strong", f"{_title(report, worst)}{where}"),
        f": {in_seconds(worst.exposed_seconds)} of the step "
        f"({in_percent(worst.exposed_seconds, step)}), of "
        f"{in_seconds(worst.seconds)} that {takes}. ",
        # Shown by the script, where there is a timeline.
        tag(
            "button",
            "Show on the timeline",
            type="button",
            hidden=True,
            data_task=one.name,
        )
        if links and len(one.name) <= LONGEST_NAME
        else None,
    )
    yield _line("Why", _sentence(one.why or f"{one.verdict}."))


def _kind_in_words(report: Report) -> str:
    """The kind of collective that is exposed most, of several."""
    kinds = sorted(report.collective_kinds, key=lambda one: -one.exposed_seconds)
    if len(kinds) < 2 or not kinds[0].exposed_seconds:
        return ""
    return f", {in_seconds(kinds[0].exposed_seconds)} of it for {kinds[0].kind}s"


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}"


def _title(report: Report, group: AlikeCollectives) -> str:
    one = report.collectives[group.members[0]]
    if len(group.members) == 1:
        return f"{printable(short_name(one), 60)} of {in_bytes(one.bytes)}"
    return f"{len(group.members)} × {one.kind} of {in_bytes(one.bytes)}"


def _gain(
    plan: Plan, after: Report | None, asked: str, *, links: bool
) -> Iterable[Html]:
    told = [lever.name for lever in plan.levers if lever.accepted]
    parts: list[str] = []
    options = [name for name in told if name not in (ORDER, COSTS)]
    if options:
        parts.append(counted(len(options), "option") + " of XLA")
    if COSTS in told:
        parts.append("our costs for XLA's scheduler")
    if ORDER in told:
        parts.append("another order of instructions")
    if plan.settings:
        sites = sum(len(one.sites) for one in plan.settings)
        parts.append(f"settings of NCCL for {counted(sites, 'collective')}")
    changes = "; ".join(parts) or "Nothing: nothing that was tried is better"
    more = [
        ": ",
        tag("a", "what was tried", href="#tried"),
        ", ",
        tag("a", "what to do", href="#todo"),
    ]
    yield _line(asked, _sentence(changes), more if links else None, ".")
    default, tuned = plan.evidence.default, plan.evidence.tuned
    steps = default.step_seconds, tuned.step_seconds
    found = plan.evidence.uncertainty
    yield _line(
        "What that brings",
        tag("strong", f"{in_seconds(steps[0])} → {in_seconds(steps[1])}"),
        f" a step: {gain_in_words(*steps, found)}. Exposed communication "
        f"{in_seconds(default.exposed_seconds)} → {in_seconds(tuned.exposed_seconds)}"
        f"{in_brackets(after.exposed_interval if after else None)}.",
    )
    alone = options_alone(plan)
    if alone is not None and alone.step_seconds is not None:
        yield _line(
            "With XLA's options alone",
            f"{in_seconds(alone.step_seconds)} a step, in XLA's own order and with "
            "NCCL's own settings.",
        )
    if rounding := rounding_in_words(plan):
        yield _line("What else it changes", f"{_sentence(rounding)}.")
    evidence = plan.evidence
    if evidence.default_peak is not None and evidence.tuned_peak is not None:
        change = evidence.tuned_peak - evidence.default_peak
        limit = evidence.memory_limit
        of = f" of {in_bytes(limit)} that JAX may take" if limit else ""
        yield _line(
            "What it costs in memory",
            f"{in_signed_bytes(change)} at the fullest moment: "
            f"{in_bytes(evidence.default_peak)} → {in_bytes(evidence.tuned_peak)}{of}.",
        )


def options_alone(plan: Plan) -> PlanCandidate | None:
    """The candidate that has the plan's XLA options and nothing else of it.

    None where the plan is no more than that, or none such was compiled.

    Args:
        plan: The plan.
    """
    options = {
        (one.name, one.value)
        for one in plan.levers
        if one.accepted and one.name not in (COSTS, ORDER)
    }
    more = plan.settings or any(one.name in (COSTS, ORDER) for one in plan.levers)
    if not options or not more:
        return None
    return next(
        (
            one
            for one in plan.evidence.candidates
            if one.step_seconds is not None and set(one.levers) == options
        ),
        None,
    )


def _trust(before: Report | None, plan: Plan | None, *, links: bool) -> Html:
    measured = plan.evidence.measured if plan is not None else None
    if measured is not None:
        return _line(
            "How sure",
            f"A job measured {in_seconds(measured.baseline_seconds)} a step before and "
            f"{in_seconds(measured.tuned_seconds)} with the plan, noise "
            f"{in_seconds(measured.noise_seconds)}. Other times are predicted.",
        )
    pricing = before.pricing if before is not None else plan.pricing if plan else ""
    interval = _interval(before, plan)
    ends = in_range(interval) if interval is not None else ""
    return _line(
        "How sure",
        "All times are predicted, and nothing here has been run. ",
        f"By nine in ten models with other constants that measurements allow, a step "
        f"takes {ends}. "
        if ends
        else None,
        "Prices: ",
        pricing,
        [". See ", tag("a", "where the figures come from", href="#sources")]
        if links
        else None,
        ".",
    )


def _interval(before: Report | None, plan: Plan | None) -> Interval | None:
    """The interval of the step that the page ends with."""
    if plan is not None:
        found = plan.evidence.uncertainty
        return None if found is None else found.tuned
    return before.step_interval if before is not None else None


def headline(before: Report | None, after: Report | None, plan: Plan | None) -> Html:
    """The parts of a step, before and after."""
    figures = list(_figures(before, after, plan))
    compared = any(figure.after for figure in figures)
    heads = ["", "as it is", *(["with the plan", "change"] if compared else []), ""]
    rows = [
        (
            figure.name,
            tag("b", figure.before),
            *((tag("b", figure.after), _change(figure)) if compared else ()),
            tag("small", figure.meaning),
        )
        for figure in figures
    ]
    return table("Time and memory of a step", heads, rows)


def _change(figure: _Figure) -> Html:
    name = {True: "better", False: "worse", None: "same"}[figure.better]
    return tag("span", figure.change, class_=name)


def _figures(
    before: Report | None, after: Report | None, plan: Plan | None
) -> Iterable[_Figure]:
    one = before or (plan and plan.evidence.default)
    other = after or (plan and plan.evidence.tuned)
    if one is None:
        return
    for name, attribute, meaning in _PARTS:
        least = _ROUNDING * one.step_seconds
        was = _whole(getattr(one, attribute), least)
        will = _whole(getattr(other, attribute), least) if other is not None else None
        if name == "Other waiting" and not was and not will:
            continue
        change = 0.0 if will is None else will - was
        yield _Figure(
            name,
            meaning,
            in_seconds(was),
            "" if will is None else in_seconds(will),
            "" if will is None else in_signed_seconds(change),
            None if not change or name == "Communication" else change < 0,
        )
        if name == "Step":
            yield from _ranges(before, plan)
        elif attribute in _INTERVALS:
            yield from _part_ranges(before, after, _INTERVALS[attribute])
    yield from _peak(before, after, plan)


def _ranges(before: Report | None, plan: Plan | None) -> Iterable[_Figure]:
    """The intervals of the step, where they are known."""
    found = plan.evidence.uncertainty if plan is not None else None
    default = before.step_interval if before is not None else None
    if found is not None:
        default = found.default
    if default is None or not in_range(default):
        return
    yield _Figure(
        _RANGE,
        _RANGE_MEANING,
        in_range(default),
        in_range(found.tuned) if found is not None else "",
        f"{found.speedup.low:.2f}× to {found.speedup.high:.2f}×" if found else "",
        None,
    )


def _part_ranges(
    before: Report | None, after: Report | None, attribute: str
) -> Iterable[_Figure]:
    """The interval of one part of the step, where there is one."""
    was, will = (
        in_range(found) if (found := getattr(one, attribute, None)) else ""
        for one in (before, after)
    )
    if was or will:
        yield _Figure(_RANGE, _RANGE_MEANING, was, will, "", None)


def _whole(seconds: float, least: float) -> float:
    """Nothing, where sums of floats leave less than can be meant."""
    return seconds if abs(seconds) > least else 0.0


def _peak(
    before: Report | None, after: Report | None, plan: Plan | None
) -> Iterable[_Figure]:
    was = will = limit = None
    if before is not None:
        was, limit = before.peak_memory_bytes, before.memory_bytes
    if after is not None:
        will = after.peak_memory_bytes
    if plan is not None:
        was = plan.evidence.default_peak if was is None else was
        will = plan.evidence.tuned_peak if will is None else will
        limit = limit or plan.evidence.memory_limit
    if was is None:
        return
    fits = "does not fit: " if limit is not None and was > limit else ""
    of = f"of {in_bytes(limit)}; " if limit else ""
    yield _Figure(
        "Peak memory",
        f"{fits}{of}at the fullest moment, as XLA counts it: no interval",
        in_bytes(was),
        "" if will is None else in_bytes(will),
        "" if will is None else in_signed_bytes(will - was),
        None if will is None or will == was else will < was,
    )
