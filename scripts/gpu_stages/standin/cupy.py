"""As much of CuPy as the stages call, on a GPU with a virtual clock.

Its kernels are slowed by collectives; how much is set by the environment
(`STANDIN_SLOWDOWN`), so that there is something to find.
"""

from __future__ import annotations

import dataclasses
import os
import random
import types
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

# What the host takes for a call, and to ask whether an event is reached.
_CALL_SECONDS, _ASK_SECONDS = 4e-6, 100e-6
_LAUNCH_SECONDS: Final = 3e-6
_MEMORY_BYTES_PER_S, _FLOPS_PER_S = 3e12, 7e14
_SMS, _BF16_BYTES = 132, 2
_DONE: Final = 1e-12
_JITTER: Final = random.Random(1)


@dataclasses.dataclass(slots=True, eq=False)
class Work:
    """A kernel, or a collective on several streams, with its remaining time alone."""

    left: float
    parts: int = 0
    """Streams of a collective; 0 for a kernel."""
    hangs: bool = False

    def __post_init__(self) -> None:
        self.left *= _JITTER.uniform(0.99, 1.01)


@dataclasses.dataclass(slots=True, eq=False)
class Event:
    """A place on a stream."""

    when: float | None = None
    """The time at which it was reached."""

    def record(self, stream: Stream) -> None:
        """Puts it behind the stream's work so far."""
        GPU.push(stream.tasks, self)

    @property
    def done(self) -> bool:
        """Whether it is reached; asking takes time."""
        return GPU.reached(self)


@dataclasses.dataclass(slots=True, eq=False)
class Hold:
    """A wait of one stream for an event."""

    until: Event


Task = Work | Event | Hold


class Clock:
    """The streams of the GPU, and its time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.streams: list[deque[Task]] = []

    def push(self, stream: deque[Task], task: Task) -> None:
        """Queues a task."""
        self._advance(_CALL_SECONDS)
        stream.append(task)

    def reached(self, event: Event) -> bool:
        """True if an event is reached; asking takes time."""
        if event.when is None:
            self._advance(_ASK_SECONDS)
        return event.when is not None

    def _advance(self, seconds: float) -> None:
        end = self.now + seconds
        self._settle()
        while self.now < end:
            heads = [s[0] for s in self.streams if s and isinstance(s[0], Work)]
            # A collective runs once all of its streams have come to it.
            running = [
                work
                for work in dict.fromkeys(heads)
                if heads.count(work) >= work.parts and not work.hangs
            ]
            slow = number("SLOWDOWN", 1.1) if any(w.parts for w in running) else 1.0
            pace = [(work, 1.0 if work.parts else slow) for work in running]
            step = min([end - self.now, *(work.left * slow for work, slow in pace)])
            for work, slow in pace:
                work.left -= step / slow
            self.now += step
            self._settle()

    def _settle(self) -> None:
        """Takes what needs no more time off the streams."""
        changed = True
        while changed:
            changed = False
            for stream in self.streams:
                while stream and self._done(stream[0]):
                    stream.popleft()
                    changed = True

    def _done(self, task: Task) -> bool:
        if isinstance(task, Event):
            task.when = self.now
            return True
        if isinstance(task, Hold):
            return task.until.when is not None
        return task.left <= _DONE


def number(name: str, usual: float) -> float:
    """What a test has set in the environment."""
    return float(os.environ.get(f"STANDIN_{name}", usual))


GPU: Final = Clock()
"""The one GPU of this process."""


class Stream:
    """A stream of the virtual GPU."""

    def __init__(
        self, null: bool = False, non_blocking: bool = False, priority: int = 0
    ) -> None:
        self.tasks: deque[Task] = deque()
        GPU.streams.append(self.tasks)

    def __enter__(self) -> Stream:
        _CURRENT.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _CURRENT.pop()

    def wait_event(self, event: Event) -> None:
        """Lets it wait for an event."""
        GPU.push(self.tasks, Hold(event))


_CURRENT: Final[list[Stream]] = []


def get_elapsed_time(start_event: Event, end_event: Event) -> float:
    """Milliseconds between two events that are reached."""
    assert start_event.when is not None
    assert end_event.when is not None
    return 1e3 * (end_event.when - start_event.when)


class Device:
    """The one device."""

    def __init__(self, device: int = 0) -> None:
        self.attributes = {"MultiProcessorCount": _SMS}

    def use(self) -> None:
        """Makes it the current one."""


class Array:
    """An array of which only the size is known."""

    def __init__(self, size: int, whole: Array | None = None) -> None:
        self.size, self.whole = size, whole or self
        self.data = types.SimpleNamespace(ptr=id(self))

    def __getitem__(self, part: slice) -> Array:
        if part.stop > self.size:
            raise IndexError(f"{part.stop} of {self.size} elements")
        return Array(part.stop, self.whole)


def zeros(shape: int, dtype: Any = float) -> Array:
    """An array of f32."""
    assert dtype is np.float32
    return Array(shape)


def asarray(a: Any) -> Array:
    """An array as large as one of the host."""
    return Array(a.nbytes // 4)


class RawKernel:
    """The triad, which is the only kernel; its last argument counts vectors of four."""

    def __init__(self, code: str, name: str) -> None:
        assert f"void {name}(" in code

    def __call__(
        self, grid: Sequence[int], block: Sequence[int], args: Sequence[Any]
    ) -> None:
        """Launches it on the current stream."""
        seconds = _LAUNCH_SECONDS + 48.0 * float(args[-1]) / _MEMORY_BYTES_PER_S
        GPU.push(_CURRENT[-1].tasks, Work(seconds))


class _Cublas:
    """cuBLAS, with products that arithmetic or memory limits."""

    def create(self) -> int:
        return 1

    def gemmEx(
        self, handle: int, transa: int, transb: int, m: int, n: int, k: int, *_: Any
    ) -> None:
        assert len(_) == 13
        if "STANDIN_FAILS" in os.environ:
            raise RuntimeError("gemmEx was made to fail")
        nbytes = _BF16_BYTES * (m * k + k * n + m * n)
        limits = (2.0 * m * n * k / _FLOPS_PER_S, nbytes / _MEMORY_BYTES_PER_S)
        # As CuPy does, whatever stream the handle had.
        GPU.push(_CURRENT[-1].tasks, Work(_LAUNCH_SECONDS + max(limits)))


cuda: Final = types.SimpleNamespace(
    Stream=Stream,
    Event=Event,
    Device=Device,
    get_elapsed_time=get_elapsed_time,
    cublas=_Cublas(),
    runtime=types.SimpleNamespace(
        getDeviceCount=lambda: 1, deviceSynchronize=lambda: None
    ),
)
