"""The page of a run: question, verdict, checks, findings, numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from gpu_stages.stage import STAGES, StageResult

# All rows are in the stages' own files.
_MOST_ROWS: Final = 24


def write(
    path: Path,
    machine: Mapping[str, str],
    stages: Mapping[str, StageResult],
    cluster: str,
) -> None:
    """Writes the page of all stages that ran so far."""
    answers = [
        (STAGES[name].text, f"**{one.verdict}**") for name, one in stages.items()
    ]
    lines = [f"# {machine['name']}\n", *_table(("question", "verdict"), answers)]
    versions = dict(machine)
    for name, stage in stages.items():
        lines += answer(name, stage, cluster)
        for listing in stage.outcome.listings:
            rows = listing.rows[:_MOST_ROWS]
            lines.append(f"### {listing.title}\n")
            if len(rows) < len(listing.rows):
                lines.append(f"The first {len(rows)} of {len(listing.rows)}:\n")
            lines += _table(listing.head, rows)
        versions |= dict(stage.outcome.versions)
    lines += ["## Versions\n", *_table(("part", "version"), versions.items())]
    path.write_text("\n".join(lines))


def answer(name: str, stage: StageResult, cluster: str) -> Iterator[str]:
    """What a stage has to say, as lines of Markdown, but for its tables.

    Args:
        name: Of the stage.
        stage: Its result.
        cluster: To calibrate for.
    """
    outcome = stage.outcome
    yield f"## {name.capitalize()}: {stage.verdict}\n"
    yield STAGES[name].text
    if stage.verdict == "refuted":
        yield f"**No.** {STAGES[name].if_refuted}"
    yield ""
    if stage.why:
        yield f"**{stage.status.capitalize()}**: {stage.why}\n"
    if outcome.checks:
        met = {None: "", True: "yes", False: "**no**"}
        yield from _table(
            ("check", "value", "at most", "met"),
            [
                (
                    *(one.title, _shown(one.value, one.unit)),
                    *(_shown(one.at_most, one.unit), met[one.met]),
                )
                for one in outcome.checks
            ],
        )
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


def _shown(value: str | float | None, unit: str = "") -> str:
    """A cell of a table.

    Example:
        >>> _shown(0.0432, "%"), _shown(1234.5), _shown(0.0312), _shown(1 << 26)
        ('4.3 %', '1234', '0.0312', '67108864')
    """
    if value is None or isinstance(value, str):
        return value or ""
    if unit == "%":
        return f"{100 * value:.1f} %"
    return f"{value:.0f}" if value == int(value) else f"{value:.4g}"


def _table(
    head: tuple[str, ...], rows: Iterable[tuple[str | float, ...]]
) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for row in rows:
        cells = [_shown(cell) for cell in row]
        escaped = [cell.replace("|", "\\|").replace("\n", " ") for cell in cells]
        yield f"| {' | '.join(escaped)} |"
    yield ""
