"""A replay that writes down when each task ran, for pictures and traces.

The record is a tree, as the program is: a loop keeps the iterations that were replayed
and how often each stands for itself, so that it is as long as what was replayed and not
as the step. Times in a stretch count from its beginning. A transfer that is under way
where an iteration ends is cut there, and goes on in what comes next.
"""

from __future__ import annotations

import dataclasses

from lagom_jax.cost.contention import Contention, NoContention
from lagom_jax.cost.ledger import Ledger
from lagom_jax.cost.prices import Prices
from lagom_jax.cost.replay import Machine
from lagom_jax.cost.streams import Flight, Streams
from lagom_jax.cost.timeline import Timeline
from lagom_jax.program.program import Block, Loop, Program, Stream, Task


@dataclasses.dataclass(frozen=True, slots=True)
class RecordedPiece:
    """A task on a stream, or the part of it that lies in one stretch."""

    stream: Stream
    task: Task
    begin: float
    end: float
    token: int = 0
    """As its launch names it; 0 on the compute stream."""
    starts: bool = True
    """False for the rest of a task that began before the stretch."""
    stops: bool = True
    """False for a task that goes on after the stretch."""


@dataclasses.dataclass(frozen=True, slots=True)
class Stall:
    """The compute stream stands still."""

    task: Task
    """The task that it is charged to."""
    begin: float
    end: float


@dataclasses.dataclass(frozen=True, slots=True)
class LaunchTime:
    """The moment at which a task is handed to another stream."""

    task: Task
    stream: Stream
    token: int
    at: float


@dataclasses.dataclass(frozen=True, slots=True)
class WaitTime:
    """The moment at which a wait for a token is over."""

    token: int
    at: float


@dataclasses.dataclass(slots=True)
class Rounds:
    """Iterations of a loop, and the number of times that they run one after another."""

    iterations: list[Stretch]
    times: int = 1


@dataclasses.dataclass(slots=True)
class LoopTime:
    """A loop in a stretch."""

    name: str
    trips: int
    begin: float
    end: float = 0.0
    rounds: list[Rounds] = dataclasses.field(default_factory=list[Rounds])


@dataclasses.dataclass(slots=True)
class Stretch:
    """A step, or an iteration of a loop in it."""

    seconds: float = 0.0
    pieces: list[RecordedPiece] = dataclasses.field(default_factory=list[RecordedPiece])
    stalls: list[Stall] = dataclasses.field(default_factory=list[Stall])
    launches: list[LaunchTime] = dataclasses.field(default_factory=list[LaunchTime])
    waits: list[WaitTime] = dataclasses.field(default_factory=list[WaitTime])
    loops: list[LoopTime] = dataclasses.field(default_factory=list[LoopTime])


def record(
    program: Program, prices: Prices, contention: Contention | None = None
) -> tuple[Timeline, Stretch]:
    """Replays one step, as `replay` does, and writes down when each task ran.

    Args:
        program: The step.
        prices: What each task costs alone.
        contention: What tasks do to each other; nothing by default.

    Returns:
        What `replay` returns, and the record.
    """
    recorder = _Recorder(prices, contention)
    ledger = Ledger()
    for node in program.body:
        recorder.node(node, ledger)
    recorder.streams.drain(ledger)
    step = recorder.recording.finished()
    return Timeline(ledger.totals, ledger.tasks, recorder.known), step


@dataclasses.dataclass(slots=True)
class _Open:
    """A task under way on a stream, and since when in the present stretch."""

    flight: Flight
    begin: float
    starts: bool


class _RecordingStreams(Streams):
    """Streams that write into the stretch that is open."""

    def __init__(self, contention: Contention) -> None:
        super().__init__(contention)
        self._stack: list[tuple[Stretch, float]] = [(Stretch(), 0.0)]
        self._open: dict[Stream, _Open] = {}

    @property
    def stretch(self) -> Stretch:
        """The stretch that is being written."""
        return self._stack[-1][0]

    @property
    def at(self) -> float:
        """The time since it began."""
        return self.now - self._stack[-1][1]

    def begin_stretch(self) -> None:
        """Begins an iteration; what was under way must have been cut."""
        self._stack.append((Stretch(), self.now))
        self.resume()

    def end_stretch(self) -> Stretch:
        """Ends an iteration; `resume` goes on with what it was part of."""
        self.cut()
        stretch, begun = self._stack.pop()
        stretch.seconds = self.now - begun
        return stretch

    def resume(self) -> None:
        """Goes on with what was under way, at the present time."""
        for opened in self._open.values():
            opened.begin = self.at

    def finished(self) -> Stretch:
        """The whole step."""
        ((stretch, _),) = self._stack
        stretch.seconds = self.now
        return stretch

    def launch(self, stream: Stream, token: int, task: Task, seconds: float) -> None:
        """Puts a task at the end of its stream's queue."""
        super().launch(stream, token, task, seconds)
        self.stretch.launches.append(LaunchTime(task, stream, token, self.at))
        queue = self._queues[stream]
        if len(queue) == 1:
            self._open[stream] = _Open(queue[0], self.at, True)

    def compute(self, task: Task, seconds: float, ledger: Ledger) -> None:
        """Runs a task on the compute stream."""
        begin = self.at
        super().compute(task, seconds, ledger)
        self.stretch.pieces.append(RecordedPiece(Stream.COMPUTE, task, begin, self.at))

    def wait(self, token: int, ledger: Ledger) -> None:
        """Holds compute until everything launched under a token is done."""
        super().wait(token, ledger)
        self.stretch.waits.append(WaitTime(token, self.at))

    def _stand_still(self, charged: Stream, ledger: Ledger) -> None:
        task, begin = self._queues[charged][0].task, self.at
        super()._stand_still(charged, ledger)
        stalls, loops = self.stretch.stalls, self.stretch.loops
        goes_on = stalls and stalls[-1].task is task and stalls[-1].end == begin
        # A loop may take no time, and yet it lies between what stood before and after.
        if goes_on and not (loops and loops[-1].end == begin):
            begin = stalls.pop().begin
        stalls.append(Stall(task, begin, self.at))

    def _land(self, ended: Flight | None) -> None:
        before = {stream: list(queue) for stream, queue in self._queues.items()}
        super()._land(ended)
        for stream, flights in before.items():
            queue = self._queues.get(stream)
            done = len(flights) - (len(queue) if queue else 0)
            for flight in flights[:done]:
                opened = self._open.pop(stream, None)
                begin, starts = (
                    (opened.begin, opened.starts) if opened else (self.at, True)
                )
                self.stretch.pieces.append(
                    RecordedPiece(
                        stream, flight.task, begin, self.at, flight.token, starts
                    )
                )
            if done and queue:
                self._open[stream] = _Open(queue[0], self.at, True)

    def cut(self) -> None:
        """Ends the pieces of what is under way, for another stretch to go on with."""
        for stream, opened in self._open.items():
            flight = opened.flight
            if self.at > opened.begin:
                self.stretch.pieces.append(
                    RecordedPiece(
                        *(stream, flight.task, opened.begin, self.at, flight.token),
                        starts=opened.starts,
                        stops=False,
                    )
                )
                opened.starts = False


class _Recorder(Machine):
    """Walks the nodes of a program, and keeps the iterations of loops apart."""

    def __init__(self, prices: Prices, contention: Contention | None) -> None:
        super().__init__(prices, contention)
        self.recording = _RecordingStreams(contention or NoContention())
        self.streams = self.recording
        self._loops: list[LoopTime] = []

    def _block(self, block: Block, ledger: Ledger) -> None:
        self.recording.begin_stretch()
        super()._block(block, ledger)
        self._loops[-1].rounds.append(Rounds([self.recording.end_stretch()]))

    def _repeated(self, period: int, rounds: int) -> None:
        if rounds:
            passed = self._loops[-1].rounds
            if period == 1:
                passed[-1].times += rounds
            else:
                again = [one for last in passed[-period:] for one in last.iterations]
                passed.append(Rounds(again, rounds))

    def _loop(self, loop: Loop, like: Ledger) -> Ledger:
        opened = LoopTime(loop.name, loop.trips, self.recording.at)
        self._loops.append(opened)
        self.recording.cut()
        total = super()._loop(loop, like)
        self._loops.pop()
        self.recording.resume()
        opened.end = self.recording.at
        self.recording.stretch.loops.append(opened)
        return total
