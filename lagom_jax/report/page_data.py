"""The part of a report that a page's script draws, in few bytes.

Columns instead of objects, texts by number, times as whole nanoseconds, each beginning
counted from the one before. The script in `assets/data.js` reads it, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from lagom_jax.hlo.kinds import POINT_TO_POINT
from lagom_jax.markup import LONGEST_NAME, printable
from lagom_jax.report.alike import alike, place, short_name
from lagom_jax.report.figures import CollectiveReport, Report
from lagom_jax.report.grouping import summed
from lagom_jax.report.merged import merged
from lagom_jax.report.tracks import Slices, StepTracks, StretchTracks

MOST_SLICES: Final = 24_000
"""On a page, for each of its timelines; shorter ones are drawn together."""
MOST_COLLECTIVES: Final = 12_000
"""Listed one by one; groups of them are listed all."""


class _Texts:
    """Texts by number, each kept once."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        shown = printable(text, LONGEST_NAME)
        return self.numbers.setdefault(shown, len(self.numbers))


def page_data(before: Report | None, after: Report | None) -> dict[str, Any]:
    """The data of a page's script.

    Args:
        before: The step as it is.
        after: The step with a plan.
    """
    texts = _Texts()
    reports = [one for one in (before, after) if one is not None]
    return {
        "steps": [_step(one, texts) for one in reports],
        "collectives": [_collectives(one, texts) for one in reports],
        # Last: the others have numbered their texts by now.
        "texts": list(texts.numbers),
    }


def _step(report: Report, texts: _Texts) -> dict[str, Any] | None:
    if report.tracks is None:
        return None
    return _Step(merged(report.tracks, MOST_SLICES), texts).written()


class _Step:
    def __init__(self, tracks: StepTracks, texts: _Texts) -> None:
        self._tracks, self._texts = tracks, texts
        self._stretches: list[dict[str, Any]] = []
        self._known: dict[int, int] = {}

    def written(self) -> dict[str, Any]:
        number = self._texts.number
        self._stretch(self._tracks.step)
        return {
            "names": list(self._tracks.names),
            "tasks": [
                [
                    *map(number, (t.name, t.kind, t.where, t.source)),
                    *(int(t.collective), _ns(t.seconds), number(t.bound), t.bytes),
                    *(round(t.memory_bytes_per_s), t.channels, t.bytes_in_flight),
                    *(number(t.link), round(t.link_share, 3), t.count),
                ]
                for t in self._tracks.tasks
            ],
            "stretches": self._stretches,
        }

    def _stretch(self, stretch: StretchTracks) -> int:
        known = self._known.get(id(stretch))
        if known is not None:
            return known
        number = self._known[id(stretch)] = len(self._stretches)
        self._stretches.append({})
        memory = stretch.memory
        at = [_ns(moment) for moment in memory.at]
        self._stretches[number].update(
            seconds=_ns(stretch.seconds),
            slices=_columns(stretch.slices),
            stalls=_columns(stretch.stalls),
            memory=[_deltas(at), list(memory.bytes)],
            loops=[
                [
                    self._texts.number(loop.name),
                    *(loop.trips, _ns(loop.begin), _ns(loop.end)),
                    [
                        [
                            rounds.times,
                            [self._stretch(one) for one in rounds.iterations],
                        ]
                        for rounds in loop.rounds
                    ],
                ]
                for loop in stretch.loops
            ],
        )
        return number


def _columns(slices: Slices) -> list[list[int]]:
    begins = [_ns(begin) for begin in slices.begin]
    ends = [_ns(end) for end in slices.end]
    return [
        list(slices.track),
        list(slices.task),
        _deltas(begins),
        [end - begin for begin, end in zip(begins, ends, strict=True)],
        list(slices.cut),
    ]


def _collectives(report: Report, texts: _Texts) -> dict[str, Any]:
    groups = alike(report.collectives)
    listed = report.collectives[:MOST_COLLECTIVES]
    return {
        "rows": [_row(one, texts) for one in listed],
        "groups": [
            [
                texts.number(group.place),
                [number for number in group.members if number < len(listed)],
                *(len(group.members), group.executions, _ns(group.seconds)),
                *(_ns(group.exposed_seconds), _ns(group.slowed_seconds)),
                _row(summed([report.collectives[n] for n in group.members]), texts),
            ]
            for group in groups
        ],
        "left": len(report.collectives) - len(listed),
        "step": _ns(report.step_seconds),
    }


def _row(one: CollectiveReport, texts: _Texts) -> list[Any]:
    number = texts.number
    return [
        *map(number, (short_name(one), one.kind, one.verdict, one.why, place(one))),
        *(number(one.source), number(one.op_name), one.bytes, number(members(one))),
        *(one.executions, _ns(one.seconds), _ns(one.exposed_seconds)),
        *(number(one.bound), round(one.link_use, 4), one.operands, int(one.sync)),
        _ns(one.slowed_seconds),
    ]


def members(one: CollectiveReport) -> str:
    """Groups and their sizes, or pairs."""
    if one.kind in POINT_TO_POINT:
        return "1 pair" if one.group_size == 1 else f"{one.group_size} pairs"
    return f"{one.groups}×{one.group_size}" if one.groups > 1 else str(one.group_size)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _deltas(values: Sequence[int]) -> list[int]:
    return [one - last for last, one in zip((0, *values), values, strict=False)]
