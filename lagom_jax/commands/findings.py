"""What was found, as lines for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from lagom_jax.errors import Finding

_MARKS = {"ok": ("ok", "green"), "warning": ("note", "yellow"), "error": ("BAD", "red")}


def print_findings(screen: Console, findings: Iterable[Finding]) -> None:
    """Prints what was found, with what to do where something is wrong."""
    for finding in findings:
        mark, style = _MARKS[finding.severity]
        text = Text.assemble((f"{mark:>5} ", style), finding.text)
        if finding.remedy:
            text.append(f"\n      -> {finding.remedy}", style)
        screen.print(text, soft_wrap=True)


def as_rows(findings: Iterable[Finding]) -> list[dict[str, str]]:
    """What was found, for JSON."""
    return [
        {"severity": f.severity, "text": f.text, "remedy": f.remedy} for f in findings
    ]
