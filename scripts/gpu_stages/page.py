"""The page of a run, and its pictures: what was measured beside what was predicted."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from gpu_stages.pictures import draw
from gpu_stages.registry import STAGES
from gpu_stages.result import Result, StageResult, shown
from gpu_stages.stage import Row, Score

# More rows than that are in the JSON file, the worst of them here.
_MOST_ROWS: Final = 24
_DRY: Final = (
    "**A dry run: there was no GPU, and stand-ins took its place. The figures mean "
    "nothing.**"
)


def write(result: Result, folder: Path) -> list[Path]:
    """Writes the page, its pictures and the result itself.

    Returns:
        What was written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / f"{result.gpu}.md"
    data = page.with_suffix(".json")
    data.write_text(result.to_json() + "\n")
    pictures = {
        name: folder / f"{result.gpu}-{name}.svg"
        for name, stage in result.stages.items()
        if any(row.predicted is not None for row in stage.rows)
    }
    for name, path in pictures.items():
        draw(result.stages[name].rows, path)
    page.write_text("\n".join(_page(result, data, pictures)) + "\n")
    return [page, data, *pictures.values()]


def _page(result: Result, data: Path, pictures: dict[str, Path]) -> Iterator[str]:
    machine = result.machine
    yield f"# {machine.get('name', result.gpu)}"
    yield ""
    if result.dry:
        yield from (_DRY, "")
    yield f"Made by `{machine['command']}` on {machine['date']}; all of it in"
    yield f"[{data.name}]({data.name}). Spreads are quarters: a quarter of the"
    yield "measurements is below, a quarter above. Errors are predicted over measured,"
    yield "less one."
    yield ""
    for name, stage in result.stages.items():
        yield from _stage(name, stage, pictures.get(name))
    yield "## Versions"
    yield ""
    yield "| what | version |"
    yield "|---|---|"
    versions = dict(machine)
    for stage in result.stages.values():
        versions |= stage.versions
    for what, version in versions.items():
        if what not in ("command", "date"):
            yield f"| {what} | {_cell(version)} |"


def _stage(name: str, stage: StageResult, picture: Path | None) -> Iterator[str]:
    title = STAGES[name]
    yield f"## {title[0].upper()}{title[1:]}"
    yield ""
    if stage.status != "ran":
        yield f"**{stage.status.capitalize()}**: {stage.why}"
        yield ""
        return
    yield f"It took {stage.seconds:.0f} s."
    yield ""
    if stage.scores:
        yield "| what | value | goal | met |"
        yield "|---|--:|--:|---|"
        yield from map(_score, stage.scores)
        yield ""
    if picture:
        yield f"![predicted against measured]({picture.name})"
        yield ""
    for heading, lines in (
        ("What disagrees", stage.findings),
        ("Not measured", stage.left_out),
    ):
        if lines:
            yield f"{heading}:"
            yield ""
            yield from (f"- {line}" for line in lines)
            yield ""
    rows = sorted(stage.rows, key=lambda row: row.series)
    for series, members in itertools.groupby(rows, key=lambda row: row.series):
        yield from _table(series, list(members))


def _score(score: Score) -> str:
    goals = [
        f"{word} {shown(goal, score.unit)}"
        for word, goal in (("at most", score.most), ("at least", score.least))
        if goal is not None
    ]
    met = {None: "", True: "yes", False: "**no**"}[score.met]
    what = score.what + (", kept out" if score.kept_out else "")
    value = shown(score.value, score.unit)
    return f"| {_cell(what)} | {value} | {', '.join(goals)} | {met} |"


def _table(series: str, rows: Sequence[Row]) -> Iterator[str]:
    worst = sorted(rows, key=lambda row: -abs(row.error or 0.0))[:_MOST_ROWS]
    more = list(dict.fromkeys(name for row in worst for name in row.details))
    columns: dict[str, Callable[[Row], str]] = {
        "what": lambda row: _cell(row.what),
        "measured": lambda row: shown(row.measured.median, row.unit),
        "spread": _spread,
        "predicted": lambda row: _or_nothing(row.predicted, row.unit),
        "error": lambda row: "" if row.error is None else f"{100 * row.error:+.1f} %",
        "after the fit": lambda row: _or_nothing(row.fitted, row.unit),
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


def _spread(row: Row) -> str:
    measured = row.measured
    if measured.count == 1:
        return ""
    low, high = (shown(value, row.unit) for value in (measured.low, measured.high))
    return f"{low} to {high}, {measured.count} times"


def _or_nothing(value: float | None, unit: str) -> str:
    return "" if value is None else shown(value, unit)


def _cell(value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")
