"""The timeline as a picture for papers, with matplotlib."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from lagom_jax.report.merged import merged
from lagom_jax.report.notebook import MissingPackageError
from lagom_jax.report.story import PageError, Story
from lagom_jax.report.tracks import StepTracks, StretchTracks
from lagom_jax.units import in_seconds

Bars: TypeAlias = dict[tuple[str, str], list[tuple[float, float]]]
"""By track and colour: beginnings and lengths, in milliseconds."""

_WIDTH_INCHES: Final = 7.0
_TRACK_INCHES: Final = 0.28
_MOST: Final = 20_000
STALLS: Final = "stands still"
# Okabe and Ito's colours, which those who see fewer colours can tell apart.
COLOURS: Final[Mapping[str, str]] = {
    "matmul": "#0072b2",
    "other kernels": "#8aa0b5",
    "all-gather": "#e69f00",
    "reduce-scatter, all-reduce": "#cc79a7",
    "other collectives": "#b59a00",
    STALLS: "#d55e00",
}
_KINDS: Final[Mapping[str, str]] = {
    "matmul": "matmul",
    "convolution": "matmul",
    "attention": "matmul",
    "all-gather": "all-gather",
    "reduce-scatter": "reduce-scatter, all-reduce",
    "all-reduce": "reduce-scatter, all-reduce",
}


def write_figure(story: Story, path: str | Path) -> None:
    """Draws the timelines of a story, one above the other at one scale.

    Args:
        story: What it is about; it has at least one report with tracks.
        path: The file; its ending says in which format (`.pdf`, `.svg`, `.png`).

    Raises:
        MissingPackageError: matplotlib is not installed.
        PageError: There is nothing to draw, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingPackageError(
            "a figure needs matplotlib: pip install matplotlib, or lagom_jax[figure]"
        ) from None
    steps = [
        (title, report.tracks)
        for title, report in (("as it is", story.before), ("plan", story.after))
        if report is not None and report.tracks is not None
    ]
    if not steps:
        raise PageError("there is no timeline to draw")
    drawn = [(title, tracks.names, bars_of(tracks)) for title, tracks in steps]
    rows = [len(_used(names, bars)) for _, names, bars in drawn]
    height = 0.9 + _TRACK_INCHES * sum(rows) + 0.35 * len(rows)
    figure: Any = Figure(figsize=(_WIDTH_INCHES, height), layout="constrained")
    axes = figure.subplots(
        len(drawn), 1, sharex=True, squeeze=False, height_ratios=rows
    )[:, 0]
    for axis, (title, names, bars), (_, tracks) in zip(axes, drawn, steps, strict=True):
        _draw(axis, _used(names, bars), bars)
        axis.set_title(
            f"{title}: {in_seconds(tracks.step.seconds)}", loc="left", fontsize=9
        )
    axes[-1].set_xlabel("ms (predicted)", fontsize=8)
    used = {colour for _, _, bars in drawn for _, colour in bars}
    handles = [
        axes[0].broken_barh([], (0, 0), facecolors=COLOURS[name], label=name)
        for name in COLOURS
        if name in used
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=7)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise PageError(f"cannot write {path}: {error}") from None


def bars_of(tracks: StepTracks) -> Bars:
    """The bars of a step, loops written out.

    Args:
        tracks: The tracks of the step.
    """
    found: Bars = defaultdict(list)
    kept = merged(tracks, _MOST)
    for track, colour, begin, length in _bars(kept, kept.step, 0.0):
        found[track, colour].append((begin * 1e3, length * 1e3))
    return dict(found)


def _bars(
    tracks: StepTracks, stretch: StretchTracks, offset: float
) -> Iterator[tuple[str, str, float, float]]:
    slices = stretch.slices
    for number, track in enumerate(slices.track):
        task = tracks.tasks[slices.task[number]]
        other = "other collectives" if task.collective else "other kernels"
        begin, end = slices.begin[number], slices.end[number]
        yield (
            tracks.names[track],
            _KINDS.get(task.kind, other),
            offset + begin,
            end - begin,
        )
    for begin, end in zip(stretch.stalls.begin, stretch.stalls.end, strict=True):
        yield tracks.names[0], STALLS, offset + begin, end - begin
    for loop in stretch.loops:
        at = offset + loop.begin
        for rounds in loop.rounds:
            for _ in range(rounds.times):
                for iteration in rounds.iterations:
                    yield from _bars(tracks, iteration, at)
                    at += iteration.seconds


def _used(names: tuple[str, ...], bars: Bars) -> list[str]:
    there = {track for track, _ in bars}
    return [name for name in names if name in there]


def _draw(axis: Any, names: list[str], bars: Bars) -> None:
    for (track, colour), spans in bars.items():
        place = len(names) - 1 - names.index(track)
        axis.broken_barh(
            spans, (place + 0.1, 0.8), facecolors=COLOURS[colour], linewidth=0
        )
    axis.set_yticks(
        [len(names) - 0.5 - n for n in range(len(names))], names, fontsize=8
    )
    axis.tick_params(axis="x", labelsize=8)
    axis.set_ylim(0, len(names))
    axis.margins(x=0)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
