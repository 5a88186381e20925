"""A report of a job that changes nothing: a line, and files to look at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lagom_jax.report import Report
from lagom_jax.report.page import write_page
from lagom_jax.report.perfetto import write_trace
from lagom_jax.report.story import Story
from lagom_jax.runtime import say
from lagom_jax.runtime.say import LOG
from lagom_jax.units import in_percent, in_seconds

_TIMES: dict[Path, int] = {}
"""The number of times that this process has been asked to write a file."""


def tell(report: Report, html: str | Path | None, trace: str | Path | None) -> None:
    """Says how much of a step waits, and writes the files that were asked for.

    Args:
        report: The step's.
        html: The page.
        trace: The trace.
    """
    say.visibly(
        f"{report.program} on {report.cluster}: predicted "
        f"{in_seconds(report.step_seconds)} a step, of which "
        f"{in_seconds(report.exposed_seconds)} "
        f"({in_percent(report.exposed_seconds, report.step_seconds)}) wait for "
        "communication"
    )
    for file in write_views(report, html, trace):
        say.visibly(f"written to {file}")
    LOG.debug("%s", report)


def write_views(
    report: Report, html: str | Path | None, trace: str | Path | None
) -> Iterator[Path]:
    """Writes a page and a trace, as far as they are asked for.

    A job that compiles its step for several shapes asks several times: the later
    files get a number.

    Args:
        report: What they show.
        html: The page.
        trace: The trace.

    Yields:
        What was written.

    Raises:
        PageError: A file cannot be written.
    """
    if html is not None:
        path = _next(Path(html))
        write_page(Story(report), path)
        yield path
    if trace is not None:
        path = _next(Path(trace))
        write_trace(path, report)
        yield path


def _next(path: Path) -> Path:
    """The path itself at first, then with a number before its endings."""
    whole = path.absolute()
    times = _TIMES[whole] = _TIMES.get(whole, 0) + 1
    if times == 1:
        return path
    stem, dot, endings = path.name.partition(".")
    return path.with_name(f"{stem}-{times}{dot}{endings}")
