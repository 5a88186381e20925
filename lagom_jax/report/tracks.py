"""The tracks of a step: each stream's tasks over time, as plain data.

What the pictures and the trace are drawn from. Times count in seconds from the
beginning of the stretch that they stand in; a loop keeps its iterations once, with the
number of times that they run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Protocol

from lagom_jax.cost.loads import CollectiveLoad, KernelLoad
from lagom_jax.cost.prices import Price
from lagom_jax.cost.recording import LoopTime, Rounds, Stretch
from lagom_jax.hlo.collective import Collective
from lagom_jax.hlo.config import source_line
from lagom_jax.hlo.module import Module
from lagom_jax.program.program import Kernel, Stream, Task
from lagom_jax.report.origin import place_of, short_origin

BEGAN_BEFORE = 1
"""In `Slices.cut`: the task began before the stretch."""
GOES_ON = 2
"""In `Slices.cut`: it goes on after the stretch."""


class Loads(Protocol):
    """Anything that knows what tasks take of a GPU."""

    def kernel_load(self, kernel: Kernel) -> KernelLoad:
        """Load of a kernel on the GPU."""
        ...

    def collective_load(self, collective: Collective) -> CollectiveLoad:
        """Load of a collective on the GPU."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class TrackTask:
    """A task that stands on a track, at least once."""

    name: str
    kind: str
    """Kind of collective, or of kernel."""
    where: str
    """The named scope of the program that it stands in."""
    source: str
    """`file:line` of the user's code; empty where unknown."""
    collective: bool
    seconds: float
    """Of one execution alone."""
    bound: str
    """The resource that sets this time."""
    bytes: int
    """Moved by a collective, or read and written by a kernel."""
    memory_bytes_per_s: float = 0.0
    """Traffic with the GPU's memory while it runs alone."""
    channels: int = 0
    """SMs that a collective holds."""
    bytes_in_flight: int = 0
    link: str = ""
    link_share: float = 0.0
    """Of the peak of its link, 0 to 1."""
    count: int = 1
    """Tasks that are shown as one."""


@dataclasses.dataclass(frozen=True, slots=True)
class Slices:
    """Stretches of time on tracks, column by column."""

    track: tuple[int, ...] = ()
    task: tuple[int, ...] = ()
    begin: tuple[float, ...] = ()
    end: tuple[float, ...] = ()
    cut: tuple[int, ...] = ()
    """Sum of `BEGAN_BEFORE` and `GOES_ON`."""
    token: tuple[int, ...] = ()
    """By which its launch and its wait are found."""


@dataclasses.dataclass(frozen=True, slots=True)
class Moments:
    """Launches, or ends of waits, column by column."""

    at: tuple[float, ...] = ()
    track: tuple[int, ...] = ()
    """Of the task that is launched; -1 for a wait."""
    token: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryCurve:
    """Device memory in use from each moment on."""

    at: tuple[float, ...] = ()
    bytes: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class RoundTracks:
    """Iterations that run so many times, one after another."""

    times: int
    iterations: tuple[StretchTracks, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class LoopTracks:
    """A loop in a stretch."""

    name: str
    trips: int
    begin: float
    end: float
    rounds: tuple[RoundTracks, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class StretchTracks:
    """A step, or an iteration of a loop in it."""

    seconds: float
    slices: Slices
    stalls: Slices
    """Times at which the compute stream stands still, each with the task to blame."""
    launches: Moments
    waits: Moments
    loops: tuple[LoopTracks, ...]
    memory: MemoryCurve = MemoryCurve()


@dataclasses.dataclass(frozen=True, slots=True)
class StepTracks:
    """The tracks of a whole step."""

    names: tuple[str, ...]
    """Of the tracks; the compute stream is the first."""
    tasks: tuple[TrackTask, ...]
    step: StretchTracks


def tracks_of(
    step: Stretch,
    prices: Mapping[Task, Price],
    loads: Loads | None = None,
    module: Module | None = None,
    memory: Mapping[int, MemoryCurve] | None = None,
) -> StepTracks:
    """The tracks of a step that was recorded.

    Args:
        step: The record.
        prices: Of its tasks.
        loads: What tasks take of a GPU, where known.
        module: The module that they come from, for their places in the source.
        memory: Curves of memory, by `id` of the stretch of the record.
    """
    return _TrackWriter(prices, loads, module, memory or {}).write(step)


class _TrackWriter:
    def __init__(
        self,
        prices: Mapping[Task, Price],
        loads: Loads | None,
        module: Module | None,
        memory: Mapping[int, MemoryCurve],
    ) -> None:
        self._prices, self._loads, self._module = prices, loads, module
        self._memory = memory
        self._numbers: dict[Task, int] = {}
        self._tracks: dict[Stream, int] = {Stream.COMPUTE: 0}
        self._known: dict[int, StretchTracks] = {}

    def write(self, step: Stretch) -> StepTracks:
        written = self._stretch(step)
        names = tuple(stream.value for stream in self._tracks)
        return StepTracks(names, tuple(map(self._task, self._numbers)), written)

    def _number(self, task: Task) -> int:
        return self._numbers.setdefault(task, len(self._numbers))

    def _track(self, stream: Stream) -> int:
        return self._tracks.setdefault(stream, len(self._tracks))

    def _stretch(self, stretch: Stretch) -> StretchTracks:
        known = self._known.get(id(stretch))
        if known is None:
            known = self._known[id(stretch)] = self._written(stretch)
        return known

    def _written(self, stretch: Stretch) -> StretchTracks:
        pieces = sorted(
            (piece for piece in stretch.pieces if piece.end > piece.begin),
            key=lambda piece: piece.begin,
        )
        return StretchTracks(
            seconds=stretch.seconds,
            slices=Slices(
                tuple(self._track(piece.stream) for piece in pieces),
                tuple(self._number(piece.task) for piece in pieces),
                tuple(piece.begin for piece in pieces),
                tuple(piece.end for piece in pieces),
                tuple(
                    BEGAN_BEFORE * (not piece.starts) + GOES_ON * (not piece.stops)
                    for piece in pieces
                ),
                tuple(piece.token for piece in pieces),
            ),
            stalls=Slices(
                (0,) * len(stretch.stalls),
                tuple(self._number(stall.task) for stall in stretch.stalls),
                tuple(stall.begin for stall in stretch.stalls),
                tuple(stall.end for stall in stretch.stalls),
                (0,) * len(stretch.stalls),
                (0,) * len(stretch.stalls),
            ),
            launches=Moments(
                tuple(one.at for one in stretch.launches),
                tuple(self._track(one.stream) for one in stretch.launches),
                tuple(one.token for one in stretch.launches),
            ),
            waits=Moments(
                tuple(one.at for one in stretch.waits),
                (-1,) * len(stretch.waits),
                tuple(one.token for one in stretch.waits),
            ),
            loops=tuple(map(self._loop, stretch.loops)),
            memory=self._memory.get(id(stretch), MemoryCurve()),
        )

    def _loop(self, loop: LoopTime) -> LoopTracks:
        return LoopTracks(
            loop.name,
            loop.trips,
            loop.begin,
            loop.end,
            tuple(map(self._round, loop.rounds)),
        )

    def _round(self, rounds: Rounds) -> RoundTracks:
        return RoundTracks(
            rounds.times, tuple(self._stretch(one) for one in rounds.iterations)
        )

    def _task(self, task: Task) -> TrackTask:
        price = self._prices[task]
        if isinstance(task, Collective):
            load = self._loads.collective_load(task) if self._loads else None
            return TrackTask(
                *(task.name, task.kind, short_origin(task.op_name), task.source, True),
                *(price.seconds, price.bound, task.bytes),
                load.memory_bytes_per_s if load else 0.0,
                load.channels if load else 0,
                load.bytes_in_flight if load else 0,
                price.bound if price.bound != "latency" else "",
                price.resource_share,
            )
        source = ""
        if task.instruction is not None and self._module is not None:
            source = source_line(self._module, task.instruction)
        moved = task.work.bytes_read + task.work.bytes_written
        traffic = task.work.hbm_bytes / price.seconds if price.seconds else 0.0
        return TrackTask(
            *(task.name, task.work.kind, place_of(task.instruction, self._module)),
            *(source, False),
            *(price.seconds, price.bound, moved, traffic),
        )


def stretches_in(step: StretchTracks) -> Iterable[tuple[StretchTracks, int]]:
    """Every stretch of a step with the number of times that it runs.

    Example:
        >>> inner = StretchTracks(1.0, Slices(), Slices(), Moments(), Moments(), ())
        >>> loop = LoopTracks("l", 3, 0.0, 3.0, (RoundTracks(3, (inner,)),))
        >>> step = StretchTracks(3.0, Slices(), Slices(), Moments(), Moments(), (loop,))
        >>> [(one.seconds, times) for one, times in stretches_in(step)]
        [(3.0, 1), (1.0, 3)]
    """
    yield step, 1
    for loop in step.loops:
        for rounds in loop.rounds:
            for iteration in rounds.iterations:
                for inner, times in stretches_in(iteration):
                    yield inner, times * rounds.times
