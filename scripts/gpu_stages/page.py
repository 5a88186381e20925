"""The page of a run: question, verdict, checks, findings, numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from gpu_stages.stage import STAGES, Check, Outcome, StageResult

# All rows are in the stages' own files.
_MOST_ROWS: Final = 24


def write(
    path: Path,
    machine: Mapping[str, str],
    stages: Mapping[str, StageResult],
    cluster: str,
) -> None:
    """Writes the page of all stages that ran so far."""
    lines = [f"# {machine['name']}\n"]
    answers = [
        (STAGES[name].text, f"**{one.verdict}**") for name, one in stages.items()
    ]
    lines += _table(("question", "verdict"), answers)
    versions = dict(machine)
    for name, stage in stages.items():
        lines += [f"## {name.capitalize()}: {stage.verdict}\n", STAGES[name].text]
        if stage.verdict == "refuted":
            lines.append(f"**No.** {STAGES[name].if_refuted}")
        lines.append("")
        if stage.status != "ran":
            lines.append(f"**{stage.status.capitalize()}**: {stage.why}\n")
        lines += _outcome(name, stage.outcome, cluster)
        versions |= dict(stage.outcome.versions)
    lines += ["## Versions\n", *_table(("part", "version"), versions.items())]
    path.write_text("\n".join(lines))


def shown(value: float, unit: str = "") -> str:
    """A number for people.

    Example:
        >>> shown(0.0432, "%"), shown(1234.5, "us"), shown(0.0312, "s")
        ('4.3 %', '1234 us', '0.0312 s')
    """
    if unit == "%":
        return f"{100 * value:.1f} %"
    if value == int(value):
        return f"{value:.0f} {unit}".strip()
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f} {unit}".strip()


def _outcome(name: str, outcome: Outcome, cluster: str) -> Iterator[str]:
    if outcome.checks:
        head = ("check", "value", "at most", "met")
        yield from _table(head, map(_check, outcome.checks))
    commands = [
        f"`lagom calibrate --cluster {cluster} {words} --output my.json`, in {name}/"
        for words in outcome.calibrate
    ]
    for heading, lines in (
        ("Disagreements", outcome.findings),
        ("Not measured", outcome.left_out),
        ("To calibrate with", commands),
    ):
        if lines:
            yield f"{heading}:\n"
            yield "\n".join(f"- {line}" for line in lines) + "\n"
    for listing in outcome.listings:
        rows = listing.rows[:_MOST_ROWS]
        yield f"### {listing.title}\n"
        if len(rows) < len(listing.rows):
            yield f"The first {len(rows)} of {len(listing.rows)}:\n"
        yield from _table(listing.head, rows)


def _check(check: Check) -> tuple[str, ...]:
    goal = "" if check.at_most is None else shown(check.at_most, check.unit)
    met = {None: "", True: "yes", False: "**no**"}[check.met]
    return check.title, shown(check.value, check.unit), goal, met


def _table(
    head: tuple[str, ...], rows: Iterable[tuple[str | float, ...]]
) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for row in rows:
        cells = [cell if isinstance(cell, str) else shown(cell) for cell in row]
        escaped = [cell.replace("|", "\\|").replace("\n", " ") for cell in cells]
        yield f"| {' | '.join(escaped)} |"
    yield ""
