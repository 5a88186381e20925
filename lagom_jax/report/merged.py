"""Tracks with fewer slices: neighbours that are too short to be seen become one."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict

from lagom_jax.report.tracks import (
    LoopTracks,
    MemoryCurve,
    RoundTracks,
    Slices,
    StepTracks,
    StretchTracks,
    TrackTask,
    stretches_in,
)

_TIMES_LONGER = 4.0


def merged(tracks: StepTracks, most: int) -> StepTracks:
    """The same tracks with at most so many slices, as far as that can be.

    Slices next to each other on a track are taken together where all of them are
    short; what is long stays as it is, and so do stalls and loops.

    Args:
        tracks: The tracks of a step.
        most: Slices that may be left.
    """
    there = {id(stretch): stretch for stretch, _ in stretches_in(tracks.step)}
    count = sum(len(one.slices.task) for one in there.values())
    if count <= most:
        return tracks
    short = max(tracks.step.seconds, 1e-9) / most / _TIMES_LONGER
    made = tracks
    for _ in range(round(math.log(most) / math.log(_TIMES_LONGER)) + 2):
        merger = _Merger(tracks, short)
        made = merger.merge()
        if merger.count <= most:
            break
        short *= _TIMES_LONGER
    return made


class _Merger:
    def __init__(self, tracks: StepTracks, short: float) -> None:
        self._tracks, self._short = tracks, short
        self._numbers: dict[TrackTask, int] = {}
        self._known: dict[int, StretchTracks] = {}
        self.count = 0

    def merge(self) -> StepTracks:
        step = self._stretch(self._tracks.step)
        return StepTracks(self._tracks.names, tuple(self._numbers), step)

    def _number(self, task: TrackTask) -> int:
        return self._numbers.setdefault(task, len(self._numbers))

    def _stretch(self, stretch: StretchTracks) -> StretchTracks:
        known = self._known.get(id(stretch))
        if known is None:
            slices = self._slices(stretch.slices)
            self.count += len(slices.task)
            known = self._known[id(stretch)] = dataclasses.replace(
                stretch,
                slices=slices,
                stalls=self._stalls(stretch.stalls),
                loops=tuple(map(self._loop, stretch.loops)),
                memory=_thinner(stretch.memory, self._short),
            )
        return known

    def _loop(self, loop: LoopTracks) -> LoopTracks:
        return dataclasses.replace(
            loop,
            rounds=tuple(
                RoundTracks(one.times, tuple(map(self._stretch, one.iterations)))
                for one in loop.rounds
            ),
        )

    def _stalls(self, stalls: Slices) -> Slices:
        tasks = self._tracks.tasks
        numbers = tuple(self._number(tasks[task]) for task in stalls.task)
        return dataclasses.replace(stalls, task=numbers)

    def _slices(self, slices: Slices) -> Slices:
        rows: list[tuple[int, int, float, float, int, int]] = []
        open_runs: dict[int, list[int]] = {}

        def close(track: int) -> None:
            run = open_runs.pop(track, [])
            if run:
                rows.append(self._row(slices, run))

        for number, track in enumerate(slices.track):
            begin, end = slices.begin[number], slices.end[number]
            run = open_runs.get(track)
            if end - begin > self._short or slices.cut[number]:
                close(track)
                rows.append(self._row(slices, [number]))
                continue
            if run and begin - slices.end[run[-1]] > self._short:
                close(track)
            open_runs.setdefault(track, []).append(number)
        for track in list(open_runs):
            close(track)
        rows.sort(key=lambda row: row[2])
        columns = tuple(zip(*rows, strict=True)) if rows else ((),) * 6
        return Slices(*columns)

    def _row(
        self, slices: Slices, run: list[int]
    ) -> tuple[int, int, float, float, int, int]:
        first, last = run[0], run[-1]
        tasks = [self._tracks.tasks[slices.task[number]] for number in run]
        task = tasks[0] if len(run) == 1 else _together(tasks)
        return (
            slices.track[first],
            self._number(task),
            slices.begin[first],
            slices.end[last],
            slices.cut[first] if len(run) == 1 else 0,
            slices.token[first],
        )


def _together(tasks: list[TrackTask]) -> TrackTask:
    seconds: defaultdict[str, float] = defaultdict(float)
    for task in tasks:
        seconds[task.kind] += task.seconds
    kind = max(seconds, key=seconds.__getitem__)
    collective = all(task.collective for task in tasks)
    return TrackTask(
        name=f"{len(tasks)} short ones, most of them {kind}",
        kind=kind,
        where="",
        source="",
        collective=collective,
        seconds=0.0,
        bound="",
        bytes=0,
        count=len(tasks),
    )


def _thinner(curve: MemoryCurve, short: float) -> MemoryCurve:
    """The most of each short while, and what is left after it."""
    at: list[float] = []
    held: list[int] = []
    last = 0
    for moment, nbytes in zip(curve.at, curve.bytes, strict=True):
        if at and moment - at[-1] < short:
            held[-1] = max(held[-1], nbytes)
        else:
            if at and last != held[-1] and at[-1] + short < moment:
                at.append(at[-1] + short)
                held.append(last)
            at.append(moment)
            held.append(nbytes)
        last = nbytes
    if at and last != held[-1]:
        at.append(at[-1] + short)
        held.append(last)
    return MemoryCurve(tuple(at), tuple(held))
