"""The page of a run: question, verdict, checks, findings, numbers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from gpu_stages.clusters import cluster_of
from gpu_stages.result import Result, StageResult, shown
from gpu_stages.stage import STAGES, Check, Row

# The rest of a table is in the JSON file.
_MOST_ROWS: Final = 24
_DRY: Final = (
    "**A dry run: there was no GPU, and stand-ins took its place. The figures mean "
    "nothing.**"
)


def write(result: Result, folder: Path) -> list[Path]:
    """Writes the page and the result itself.

    Returns:
        The files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / f"{result.gpu}.md"
    data = page.with_suffix(".json")
    result.write(data)
    page.write_text("\n".join(_page(result, data)) + "\n")
    return [page, data]


def _page(result: Result, data: Path) -> Iterator[str]:
    machine = result.machine
    yield f"# {machine.get('name', result.gpu)}"
    yield ""
    if result.dry:
        yield from (_DRY, "")
    yield f"Made by `{machine['command']}` on {machine['date']}; all of it in"
    yield f"[{data.name}]({data.name}). Errors are predicted over measured, less one."
    yield ""
    yield "| question | verdict |"
    yield "|---|---|"
    for name, stage in result.stages.items():
        yield f"| {STAGES[name].text} | **{stage.verdict}** |"
    yield ""
    for name, stage in result.stages.items():
        yield from _stage(name, stage, result)
    yield "## Versions"
    yield ""
    yield "| what | version |"
    yield "|---|---|"
    versions = dict(machine)
    for stage in result.stages.values():
        versions |= stage.versions
    for what, version in versions.items():
        if what not in _OF_THE_HEAD:
            yield f"| {what} | {_cell(version)} |"


_OF_THE_HEAD: Final = ("command", "date")


def _stage(name: str, stage: StageResult, result: Result) -> Iterator[str]:
    yield f"## {name.capitalize()}: {stage.verdict}"
    yield ""
    yield STAGES[name].text
    if stage.verdict == "refuted":
        yield f"**No.** {STAGES[name].if_refuted}"
    yield ""
    if stage.status != "ran":
        yield f"**{stage.status.capitalize()}**: {stage.why}"
        yield ""
        return
    if stage.checks:
        yield "| check | value | goal | met |"
        yield "|---|--:|--:|---|"
        yield from map(_check, stage.checks)
        yield ""
    for heading, lines in (
        ("What disagrees", stage.findings),
        ("Not measured", stage.left_out),
        ("Constants measured", [f"{n} = {v}" for n, v in stage.constants.items()]),
        ("To calibrate with, in the folder of --keep", _commands(name, stage, result)),
    ):
        if lines:
            yield f"{heading}:"
            yield ""
            yield from (f"- {line}" for line in lines)
            yield ""
    rows = sorted(stage.rows, key=lambda row: row.series)
    for series, members in itertools.groupby(rows, key=lambda row: row.series):
        yield from _table(series, list(members))


def _commands(name: str, stage: StageResult, result: Result) -> list[str]:
    cluster = cluster_of(result.gpu).name
    return [
        f"`lagom calibrate --cluster {cluster} {table.option} {name}/{table.path} "
        + "".join(f"{word} " for word in table.more)
        + "--output my.json`"
        for table in stage.tables
    ]


def _check(check: Check) -> str:
    goals = [
        f"{word} {shown(goal, check.unit)}"
        for word, goal in (("at most", check.at_most), ("at least", check.at_least))
        if goal is not None
    ]
    met = {None: "", True: "yes", False: "**no**"}[check.met]
    value = shown(check.value, check.unit)
    return f"| {_cell(check.what)} | {value} | {', '.join(goals)} | {met} |"


def _table(series: str, rows: Sequence[Row]) -> Iterator[str]:
    worst = sorted(rows, key=lambda row: -abs(row.error or 0.0))[:_MOST_ROWS]
    more = list(dict.fromkeys(name for row in worst for name in row.details))
    columns: dict[str, Callable[[Row], str]] = {
        "what": lambda row: _cell(row.what),
        "measured": lambda row: shown(row.measured.median, row.unit),
        "quartiles": _quartiles,
        "predicted": lambda row: (
            "" if row.predicted is None else shown(row.predicted, row.unit)
        ),
        "error": lambda row: "" if row.error is None else f"{100 * row.error:+.1f} %",
        **{
            name: lambda row, name=name: _cell(row.details.get(name, ""))
            for name in more
        },
    }
    cells = {head: [cell(row) for row in worst] for head, cell in columns.items()}
    cells = {head: listed for head, listed in cells.items() if any(listed)}
    yield f"### {series[0].upper()}{series[1:]}"
    yield ""
    if len(worst) < len(rows):
        chosen = "that the model is furthest from" if worst[0].error else "first"
        yield f"Of {len(rows)} the {len(worst)} {chosen}:"
        yield ""
    yield f"| {' | '.join(cells)} |"
    yield f"|---|{'--:|' * (len(cells) - 1)}"
    yield from (f"| {' | '.join(line)} |" for line in zip(*cells.values(), strict=True))
    yield ""


def _quartiles(row: Row) -> str:
    spread = row.measured
    if spread.low == spread.high:
        return ""
    return f"{shown(spread.low, row.unit)} to {shown(spread.high, row.unit)}"


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")
