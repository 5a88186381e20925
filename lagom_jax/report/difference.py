"""Two reports side by side: figures that changed, and collectives that did."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from lagom_jax.markup import printable
from lagom_jax.report.alike import AlikeCollectives, alike
from lagom_jax.report.figures import Report
from lagom_jax.report.layout import table
from lagom_jax.units import (
    in_bytes,
    in_percent,
    in_seconds,
    in_signed_bytes,
    in_signed_seconds,
)

_PARTS = (
    ("step", "step_seconds"),
    ("computation", "compute_seconds"),
    ("of it contention", "contention_seconds"),
    ("exposed communication", "exposed_seconds"),
    ("other waiting", "waiting_seconds"),
    ("communication", "communication_seconds"),
)
# By less of a step a collective has not changed.
_SAME = 1e-4
_LONGEST = 48


@dataclasses.dataclass(frozen=True, slots=True)
class FigureChange:
    """A figure before and after."""

    name: str
    before: float
    after: float
    bytes: bool = False
    """True if it counts bytes, not seconds."""

    @property
    def shown(self) -> tuple[str, str, str, str]:
        """Name, before, after and change, in words."""
        amount, signed = (
            (in_bytes, in_signed_bytes)
            if self.bytes
            else (in_seconds, in_signed_seconds)
        )
        change = signed(self.after - self.before)
        if self.before and self.after != self.before:
            change += f" ({100 * (self.after / self.before - 1):+.1f} %)"
        return self.name, amount(self.before), amount(self.after), change


@dataclasses.dataclass(frozen=True, slots=True)
class CollectivesChange:
    """Collectives that are alike, before and after."""

    kind: str
    bytes: int
    place: str
    count_before: int
    count_after: int
    exposed_before: float
    exposed_after: float


@dataclasses.dataclass(frozen=True, slots=True)
class ReportDifference:
    """The difference between two reports."""

    before: str
    """The program and cluster of the first."""
    after: str
    figures: tuple[FigureChange, ...]
    collectives: tuple[CollectivesChange, ...]
    """Those that changed, what changed most first."""

    @property
    def slower(self) -> float:
        """By how much of it the step is longer; negative where it is shorter."""
        step = self.figures[0]
        return step.after / step.before - 1 if step.before else 0.0


def compare_reports(one: Report, other: Report) -> ReportDifference:
    """The difference between two reports.

    Args:
        one: The report before.
        other: The report after.
    """
    figures = [
        FigureChange(name, getattr(one, attribute), getattr(other, attribute))
        for name, attribute in _PARTS
    ]
    if one.peak_memory_bytes is not None and other.peak_memory_bytes is not None:
        figures.append(
            FigureChange(
                "peak memory", one.peak_memory_bytes, other.peak_memory_bytes, True
            )
        )
    changed = sorted(
        _changed(one, other),
        key=lambda change: -abs(change.exposed_after - change.exposed_before),
    )
    return ReportDifference(
        f"{one.program} on {one.cluster}",
        f"{other.program} on {other.cluster}",
        tuple(figures),
        tuple(changed),
    )


def _changed(one: Report, other: Report) -> Iterator[CollectivesChange]:
    before, after = _by_form(one), _by_form(other)
    nothing = AlikeCollectives("", "", (), 0.0, 0.0, 0.0, 0.0)
    least = _SAME * max(one.step_seconds, other.step_seconds)
    for form in {**before, **after}:
        was, will = before.get(form, nothing), after.get(form, nothing)
        moved = abs(will.exposed_seconds - was.exposed_seconds) > least
        if moved or len(was.members) != len(will.members):
            kind, nbytes, place = form
            yield CollectivesChange(
                *(kind, nbytes, place, len(was.members), len(will.members)),
                *(was.exposed_seconds, will.exposed_seconds),
            )


def _by_form(report: Report) -> dict[tuple[str, int, str], AlikeCollectives]:
    found: dict[tuple[str, int, str], AlikeCollectives] = {}
    for group in alike(report.collectives):
        first = report.collectives[group.members[0]]
        form = first.kind, first.bytes, group.scope
        known = found.get(form)
        if known is not None:
            group = AlikeCollectives(
                group.place,
                group.scope,
                (*known.members, *group.members),
                known.executions + group.executions,
                known.seconds + group.seconds,
                known.exposed_seconds + group.exposed_seconds,
                known.slowed_seconds + group.slowed_seconds,
            )
        found[form] = group
    return found


def render_difference(found: ReportDifference, rows: int | None) -> RenderableType:
    """The difference as something rich can print.

    Args:
        found: The difference.
        rows: How many collectives to list; None for all.
    """
    names = dict.fromkeys((found.before, found.after))
    figures = table("", "figure", "before", "after", "change")
    for change in found.figures:
        figures.add_row(*map(Text, change.shown))
    parts: list[RenderableType] = [
        Text(" → ".join(map(printable, names)), "bold"),
        figures,
    ]
    if found.collectives:
        listed = table(
            "Collectives that changed",
            "collective",
            "bytes",
            "sites",
            "exposed",
            "where",
        )
        for change in found.collectives[:rows]:
            listed.add_row(*map(Text, _cells(change)))
        parts += [Text(), listed]
        left = len(found.collectives) - len(found.collectives[:rows])
        if left:
            parts.append(Text(f" and {left} more: --rows all", "dim"))
    return Group(*parts)


def to_markdown(found: ReportDifference, rows: int | None) -> str:
    """The difference as Markdown, for a comment on a change.

    Args:
        found: The difference.
        rows: How many collectives to list; None for all.
    """
    lines = _markdown_table(
        ("", "before", "after", "change"),
        (change.shown for change in found.figures),
    )
    names = " → ".join(dict.fromkeys((found.before, found.after)))
    lines = [f"**{_escaped(names)}** (predicted)", "", *lines]
    if found.collectives:
        lines += [
            "",
            *_markdown_table(
                ("collective", "bytes", "sites", "exposed", "where"),
                map(_cells, found.collectives[:rows]),
            ),
        ]
        left = len(found.collectives) - len(found.collectives[:rows])
        lines += ["", f"and {left} more"] if left else []
    return "\n".join(lines) + "\n"


def _cells(change: CollectivesChange) -> tuple[str, str, str, str, str]:
    sites = str(change.count_after)
    if change.count_before != change.count_after:
        sites = f"{change.count_before} → {change.count_after}"
    return (
        change.kind,
        in_bytes(change.bytes),
        sites,
        f"{in_seconds(change.exposed_before)} → {in_seconds(change.exposed_after)}",
        printable(change.place, _LONGEST),
    )


def _markdown_table(
    heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]
) -> list[str]:
    return [
        f"| {' | '.join(heads)} |",
        f"|{'---|' * len(heads)}",
        *(f"| {' | '.join(map(_escaped, row))} |" for row in rows),
    ]


def _escaped(text: str) -> str:
    r"""Text that Markdown leaves alone.

    Example:
        >>> print(_escaped("a|<b>*c*"))
        a\|\<b\>\*c\*
    """
    shown = printable(text, 200)
    return "".join(f"\\{c}" if c in "\\|<>*_`[]#!~&@" else c for c in shown)


def exposed_share(report: Report) -> float:
    """The part of a step that stands still for communication."""
    return report.exposed_seconds / report.step_seconds if report.step_seconds else 0.0


def share_in_words(report: Report) -> str:
    """The same, in words."""
    return (
        f"{in_percent(report.exposed_seconds, report.step_seconds)} of the step "
        f"({in_seconds(report.exposed_seconds)} of {in_seconds(report.step_seconds)})"
    )
