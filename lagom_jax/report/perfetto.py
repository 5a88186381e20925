"""The tracks of a step as a trace that Perfetto and chrome://tracing open.

The Trace Event Format in JSON: a process for each step, a thread for each stream,
slices in slices for loops and their iterations, flows from a launch over its task to
the wait for it, and counters of what tasks take of the GPU. Times are whole
nanoseconds.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from lagom_jax.files import write_whole
from lagom_jax.markup import printable
from lagom_jax.report.figures import Report
from lagom_jax.report.story import PageError
from lagom_jax.report.tracks import (
    BEGAN_BEFORE,
    GOES_ON,
    LoopTracks,
    StepTracks,
    StretchTracks,
    TrackTask,
    stretches_in,
)

MOST_SLICES: Final = 400_000
"""In a trace, for each step; of longer ones the iterations of loops that are like the
one before are taken together."""
LONGEST_NAME: Final = 400
_COMPUTE: Final = 0


def trace_events(steps: Sequence[tuple[str, StepTracks]]) -> list[dict[str, Any]]:
    """The events of a trace.

    Args:
        steps: Each step with the name of its process.
    """
    return [
        event
        for number, (name, tracks) in enumerate(steps)
        for event in _StepEvents(number + 1, name, tracks).events()
    ]


def to_trace(before: Report | None, after: Report | None = None) -> str:
    """A trace as JSON text.

    Args:
        before: The step as it is.
        after: The step with a plan.
    """
    steps = [
        (f"{name}: {report.program} on {report.cluster}", report.tracks)
        for name, report in (("as it is", before), ("with the plan", after))
        if report is not None and report.tracks is not None
    ]
    document = {
        "displayTimeUnit": "ns",
        "otherData": {"made by": "lagom_jax", "times": "predicted"},
        "traceEvents": trace_events(steps),
    }
    return json.dumps(document, allow_nan=False, separators=(",", ":"))


def write_trace(
    path: str | Path, before: Report | None, after: Report | None = None
) -> None:
    """Writes a trace; compressed where the file's name ends in `.gz`.

    Args:
        path: The file.
        before: The step as it is.
        after: The step with a plan.

    Raises:
        PageError: It cannot be written.
    """
    content = to_trace(before, after).encode()
    if str(path).endswith(".gz"):
        content = gzip.compress(content, mtime=0)
    try:
        write_whole(path, content)
    except OSError as error:
        raise PageError(
            f"cannot write {path}: {error.strerror or error}; name another place"
        ) from None


class _StepEvents:
    """Writes one step's events, loops written out."""

    def __init__(self, process: int, name: str, tracks: StepTracks) -> None:
        self._process, self._name, self._tracks = process, name, tracks
        self._events: list[dict[str, Any]] = []
        self._flow = 0
        self._under_way: dict[int, dict[str, Any]] = {}
        """By track the slice that goes on after the stretch."""
        self._launched: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
        """By token the launches whose tasks have not begun: time, track, flow."""
        self._flying: defaultdict[int, list[int]] = defaultdict(list)
        """By token the flows of launches that nobody has waited for."""
        self._changes: defaultdict[int, list[float]] = defaultdict(lambda: [0.0] * 3)
        slices = sum(
            len(one.slices.task) * times for one, times in stretches_in(tracks.step)
        )
        self._whole = slices <= MOST_SLICES

    def events(self) -> Iterator[dict[str, Any]]:
        """The events, names of tracks first."""
        self._stretch(self._tracks.step, 0.0)
        yield from self._names()
        yield from self._events
        yield from self._counters()

    def _names(self) -> Iterator[dict[str, Any]]:
        about = {"ph": "M", "pid": self._process}
        yield {**about, "name": "process_name", "args": {"name": _shown(self._name)}}
        yield {
            **about,
            "name": "process_sort_index",
            "args": {"sort_index": self._process},
        }
        for track, name in enumerate(self._tracks.names):
            thread = {**about, "tid": track + 1}
            yield {**thread, "name": "thread_name", "args": {"name": name}}
            yield {**thread, "name": "thread_sort_index", "args": {"sort_index": track}}

    def _stretch(self, stretch: StretchTracks, offset: float) -> None:
        """Writes what happens in a stretch, in the order of time."""
        slices, stalls, tasks = stretch.slices, stretch.stalls, self._tracks.tasks
        happenings: list[tuple[float, int, int]] = [
            *((at, 0, number) for number, at in enumerate(stretch.launches.at)),
            *((loop.begin, 1, number) for number, loop in enumerate(stretch.loops)),
            *((begin, 2, number) for number, begin in enumerate(slices.begin)),
            *((begin, 3, number) for number, begin in enumerate(stalls.begin)),
            *((at, 4, number) for number, at in enumerate(stretch.waits.at)),
        ]
        for at, kind, number in sorted(happenings):
            when = _ns(offset + at)
            if kind == 0:
                self._launch(
                    when, stretch.launches.track[number], stretch.launches.token[number]
                )
            elif kind == 1:
                self._loop(stretch.loops[number], offset)
            elif kind == 2:
                self._slice(
                    slices.track[number],
                    tasks[slices.task[number]],
                    (when, _ns(offset + slices.end[number])),
                    slices.cut[number],
                    slices.token[number],
                )
            elif kind == 3:
                task = tasks[stalls.task[number]]
                times = when, _ns(offset + stalls.end[number])
                self._emit(_COMPUTE, f"waits for {task.name}", times, "stall")
            else:
                self._wait(when, stretch.waits.token[number])

    def _emit(
        self,
        track: int,
        name: str,
        times: tuple[int, int],
        category: str,
        about: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        begin, end = times
        made: dict[str, Any] = {
            "ph": "X",
            "pid": self._process,
            "tid": track + 1,
            "name": _shown(name),
            "cat": category,
            "ts": _us(begin),
            "dur": _us(end - begin),
        }
        if about:
            made["args"] = about
        self._events.append(made)
        return made

    def _slice(
        self,
        track: int,
        task: TrackTask,
        times: tuple[int, int],
        cut: int,
        token: int,
    ) -> None:
        begin, end = times
        self._count(task, begin, end)
        going = self._under_way.pop(track, None)
        if cut & BEGAN_BEFORE and going is not None:
            # One slice, however many iterations it reaches into.
            going["dur"] = _us(end - round(going["ts"] * 1000))
            made = going
        else:
            category = "collective" if task.collective else "kernel"
            made = self._emit(track, task.name, times, category, _about(task))
        if cut & GOES_ON:
            self._under_way[track] = made
        if not cut & BEGAN_BEFORE and token:
            self._begin_flow(track, token, begin)

    def _launch(self, at: int, track: int, token: int) -> None:
        self._flow += 1
        flow = self._process * 10_000_000 + self._flow
        self._launched[token].append((at, track, flow))
        self._flying[token].append(flow)
        launch = self._emit(_COMPUTE, "launch", (at, at), "launch")
        launch["ph"], launch["s"] = "i", "t"
        del launch["dur"]
        self._flow_event("s", flow, _COMPUTE, at)

    def _begin_flow(self, track: int, token: int, at: int) -> None:
        waiting = self._launched[token]
        for number, (_, of_track, flow) in enumerate(waiting):
            if of_track == track:
                del waiting[number]
                self._flow_event("t", flow, track, at)
                return

    def _wait(self, at: int, token: int) -> None:
        for flow in self._flying.pop(token, ()):
            self._flow_event("f", flow, _COMPUTE, at)

    def _flow_event(self, phase: str, flow: int, track: int, at: int) -> None:
        made: dict[str, Any] = {
            "ph": phase,
            "pid": self._process,
            "tid": track + 1,
            "name": "launch to wait",
            "cat": "flow",
            "id": flow,
            "ts": _us(at),
        }
        if phase == "f":
            made["bp"] = "e"
        self._events.append(made)

    def _loop(self, loop: LoopTracks, offset: float) -> None:
        times = _ns(offset + loop.begin), _ns(offset + loop.end)
        self._emit(_COMPUTE, f"{loop.name} ×{loop.trips}", times, "loop")
        at, trip = offset + loop.begin, 0
        for rounds in loop.rounds:
            written = rounds.times if self._whole else 1
            for _ in range(written):
                for iteration in rounds.iterations:
                    until = at + iteration.seconds
                    times = _ns(at), _ns(until)
                    self._emit(_COMPUTE, f"iteration {trip}", times, "iteration")
                    self._stretch(iteration, at)
                    at, trip = until, trip + 1
            left = rounds.times - written
            if left:
                count = left * len(rounds.iterations)
                until = at + left * sum(one.seconds for one in rounds.iterations)
                name = f"{count} more iterations like these"
                self._emit(_COMPUTE, name, (_ns(at), _ns(until)), "iteration")
                at, trip = until, trip + count

    def _count(self, task: TrackTask, begin: int, end: int) -> None:
        taken = (task.memory_bytes_per_s, task.channels, task.bytes_in_flight)
        if any(taken):
            for place, amount in enumerate(taken):
                self._changes[begin][place] += amount
                self._changes[end][place] -= amount

    def _counters(self) -> Iterator[dict[str, Any]]:
        names = (
            ("memory traffic", "bytes/s"),
            ("SMs taken by collectives", "SMs"),
            ("bytes in flight", "bytes"),
        )
        sums = [0.0] * len(names)
        last: list[float | None] = [None] * len(names)
        for at in sorted(self._changes):
            for place, change in enumerate(self._changes[at]):
                sums[place] += change
                # What is left of sums is rounding.
                value = float(max(0, round(sums[place])))
                if value != last[place]:
                    last[place] = value
                    name, unit = names[place]
                    yield {
                        "ph": "C",
                        "pid": self._process,
                        "name": name,
                        "ts": _us(at),
                        "args": {unit: value},
                    }


def _about(task: TrackTask) -> dict[str, Any]:
    about: dict[str, Any] = {
        "kind": task.kind,
        "where": _shown(task.where),
        "source": _shown(task.source),
        "alone_us": task.seconds * 1e6,
        "limited by": task.bound,
        "bytes": task.bytes,
    }
    if task.collective:
        about["SMs"] = task.channels
    return {name: value for name, value in about.items() if value != ""}


def _shown(text: str) -> str:
    return printable(text, LONGEST_NAME)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _us(nanoseconds: int) -> float:
    return nanoseconds / 1000
