"""The page of a run, and its pictures: what was measured beside what was predicted."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

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
        _draw(result.stages[name].rows, path)
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
        yield f"![predicted over measured]({picture.name})"
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
    yield f"### {series[0].upper()}{series[1:]}"
    yield ""
    if len(worst) < len(rows):
        yield f"The {len(worst)} of {len(rows)} that the model is furthest from:"
        yield ""
    heads = ("what", "measured", "spread", "predicted", "error", *more)
    yield f"| {' | '.join(heads)} |"
    yield f"|---|{'--:|' * (len(heads) - 1)}"
    for row in worst:
        low, high = (shown(v, row.unit) for v in (row.measured.low, row.measured.high))
        cells = [
            _cell(row.what),
            shown(row.measured.median, row.unit),
            f"{low} to {high}, {row.measured.count} times",
            "" if row.predicted is None else shown(row.predicted, row.unit),
            "" if row.error is None else f"{100 * row.error:+.1f} %",
            *(_cell(row.details.get(name, "")) for name in more),
        ]
        yield f"| {' | '.join(cells)} |"
    yield ""


def _cell(value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")


def _draw(rows: Sequence[Row], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "lagom_jax"
    from matplotlib import pyplot as plt

    shown_rows = [row for row in rows if row.predicted is not None]
    by_unit = {row.unit: row for row in shown_rows}
    figure, axes = plt.subplots(
        1,
        len(by_unit),
        figsize=(5 * len(by_unit), 3.6),
        squeeze=False,
        layout="constrained",
    )
    for axis, unit in zip(axes[0], by_unit, strict=True):
        axis.axhspan(-0.1, 0.1, color="0.93")
        axis.axhline(0, color="0.6", linewidth=0.8)
        of_unit = sorted(
            (row for row in shown_rows if row.unit == unit), key=lambda row: row.series
        )
        for series, members in itertools.groupby(of_unit, lambda row: row.series):
            points = [(row.measured.median, row.error) for row in members]
            axis.scatter(*zip(*points, strict=True), s=8, label=series)
        axis.set(xscale="log", xlabel=f"measured, {unit}" if unit else "measured")
        axis.set(ylabel="predicted / measured - 1")
        axis.legend(fontsize="small")
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
