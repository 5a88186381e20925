"""The page of a run: question, verdict, checks, findings, numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from gpu_stages.stage import STAGES, StageResult


def write(
    path: Path,
    machine: Mapping[str, str],
    stages: Mapping[str, StageResult],
) -> None:
    """Writes the page of all stages that ran so far."""
    answers = [
        (STAGES[name].text, f"**{one.verdict}**") for name, one in stages.items()
    ]
    lines = [f"# {machine['name']}\n", *_table(("question", "verdict"), answers)]
    for name, stage in stages.items():
        lines += answer(name, stage)
    lines += ["## Versions\n", *_table(("part", "version"), machine.items())]
    path.write_text("\n".join(lines))


def answer(name: str, stage: StageResult) -> Iterator[str]:
    """What a stage has to say, as lines of Markdown."""
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
                (one.title, _shown(one.value), _shown(one.at_most), met[one.met])
                for one in outcome.checks
            ],
        )
    for heading, lines in (
        ("Disagreements", outcome.findings),
        ("Not measured", outcome.left_out),
        (f"To calibrate with, in {name}/", outcome.calibrate),
    ):
        if lines:
            yield f"{heading}:\n"
            yield "\n".join(f"- {line}" for line in lines) + "\n"


def _shown(value: float | None) -> str:
    """A number for people.

    Example:
        >>> _shown(1234.5), _shown(0.0312), _shown(1 << 26), _shown(None)
        ('1234', '0.0312', '67108864', '')
    """
    if value is None:
        return ""
    return f"{value:.0f}" if value == int(value) else f"{value:.4g}"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for row in rows:
        escaped = [cell.replace("|", "\\|").replace("\n", " ") for cell in row]
        yield f"| {' | '.join(escaped)} |"
    yield ""
