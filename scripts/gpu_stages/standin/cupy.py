"""As much of CuPy as the stages call, on the GPU with a virtual clock."""

from __future__ import annotations

import os
import types
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from gpu_stages.standin.clock import GPU, Hold, Moment, Task, Work

_SMS: Final = 132
_LAUNCH_SECONDS: Final = 3e-6
_MEMORY_BYTES_PER_S, _FLOPS_PER_S = 3e12, 7e14
_BF16_BYTES: Final = 2


class Stream:
    """A stream of the virtual GPU."""

    def __init__(
        self, null: bool = False, non_blocking: bool = False, priority: int = 0
    ) -> None:
        self.tasks: deque[Task] = deque()
        GPU.streams.append(self.tasks)
        self.ptr = id(self)
        _STREAMS[self.ptr] = self

    def __enter__(self) -> Stream:
        _CURRENT.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _CURRENT.pop()

    def wait_event(self, event: Event) -> None:
        """Lets it wait for an event."""
        GPU.push(self.tasks, Hold(event.moment))


_STREAMS: Final[dict[int, Stream]] = {}
_CURRENT: Final[list[Stream]] = []


class Event:
    """An event of the virtual GPU."""

    def __init__(self) -> None:
        self.moment = Moment()

    def record(self, stream: Stream) -> None:
        """Puts it behind the stream's work so far."""
        GPU.push(stream.tasks, self.moment)

    @property
    def done(self) -> bool:
        """Whether it is reached."""
        return GPU.reached(self.moment)


def get_elapsed_time(start_event: Event, end_event: Event) -> float:
    """Milliseconds between two events that are reached."""
    assert start_event.moment.when is not None
    assert end_event.moment.when is not None
    return 1e3 * (end_event.moment.when - start_event.moment.when)


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

    def __init__(self) -> None:
        self._streams: dict[int, Stream] = {}

    def create(self) -> int:
        return len(self._streams) + 1

    def setStream(self, handle: int, stream: int) -> None:
        self._streams[handle] = _STREAMS[stream]

    def gemmEx(
        self, handle: int, transa: int, transb: int, m: int, n: int, k: int, *_: Any
    ) -> None:
        assert len(_) == 13
        if "STANDIN_FAILS" in os.environ:
            raise RuntimeError("gemmEx was made to fail")
        nbytes = _BF16_BYTES * (m * k + k * n + m * n)
        limits = (2.0 * m * n * k / _FLOPS_PER_S, nbytes / _MEMORY_BYTES_PER_S)
        GPU.push(self._streams[handle].tasks, Work(_LAUNCH_SECONDS + max(limits)))


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
