"""As much of CuPy as the stages call, on the GPU with a virtual clock."""

from __future__ import annotations

import math
import os
import types
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from gpu_stages.standin.clock import (
    FLOPS_PER_S,
    GPU,
    MEMORY_BYTES_PER_S,
    SMS,
    Hold,
    Kernel,
    Moment,
)

_LAUNCH_SECONDS: Final = 3e-6
_ARITHMETIC_SHARE, _MEMORY_SHARE = 0.7, 0.9
_TILE, _BF16_BYTES = 128, 2


class Stream:
    """A stream of the virtual GPU."""

    def __init__(
        self, null: bool = False, non_blocking: bool = False, priority: int = 0
    ) -> None:
        self.tasks = GPU.stream()
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
        self.attributes = {"MultiProcessorCount": SMS}

    def use(self) -> None:
        """Makes it the current one."""


class Array:
    """An array of which only the size is known."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.data = types.SimpleNamespace(ptr=id(self))

    def __getitem__(self, part: slice) -> Array:
        if part.stop > self.size:
            raise IndexError(f"{part.stop} of {self.size} elements")
        return Array(part.stop)


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
        _fail("RawKernel")
        ideal = 48.0 * float(args[-1]) / MEMORY_BYTES_PER_S
        seconds = _LAUNCH_SECONDS + ideal / _MEMORY_SHARE
        GPU.push(_CURRENT[-1].tasks, Kernel(seconds, ideal / seconds))


class _Cublas:
    """cuBLAS with products whose tiles are dealt out to SMs."""

    def __init__(self) -> None:
        self._streams: dict[int, Stream] = {}

    def create(self) -> int:
        return len(self._streams) + 1

    def setStream(self, handle: int, stream: int) -> None:
        self._streams[handle] = _STREAMS[stream]

    def gemmEx(
        self, handle: int, transa: int, transb: int, m: int, n: int, k: int, *_: Any
    ) -> None:
        _fail("gemmEx")
        assert len(_) == 13
        down, across = math.ceil(m / _TILE), math.ceil(n / _TILE)
        nbytes = _BF16_BYTES * (m * k + k * n + m * n)
        by_tiles = _BF16_BYTES * k * (m * across + n * down)
        rounds = math.ceil(down * across / SMS)
        flops = rounds * SMS * 2.0 * _TILE * _TILE * k
        arithmetic = flops / (FLOPS_PER_S * _ARITHMETIC_SHARE)
        memory = nbytes / (MEMORY_BYTES_PER_S * _MEMORY_SHARE)
        seconds = _LAUNCH_SECONDS + max(arithmetic, memory)
        kernel = Kernel(
            seconds,
            min(1.0, nbytes / (MEMORY_BYTES_PER_S * seconds)),
            max(0.0, by_tiles / nbytes - 1),
            down * across if arithmetic > memory else 0,
        )
        GPU.push(self._streams[handle].tasks, kernel)


def _fail(function: str) -> None:
    if os.environ.get("STANDIN_FAILS") == function:
        raise RuntimeError(f"{function} was made to fail")


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
