"""Streams, events and memory of the one GPU that a stage uses."""

from __future__ import annotations

import ctypes
import dataclasses
import time
from collections.abc import Callable
from typing import Final

from gpu_stages.cuda.binding import Library
from gpu_stages.cuda.libraries import Libraries
from gpu_stages.cuda.prototypes import value
from gpu_stages.stage import CannotRunError

ENVIRONMENT: Final = {
    # Ranks wait for each other on the GPU. Two streams that share a queue to it would
    # be served one after the other, and such ranks would wait for ever.
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",
}
"""What must be set before CUDA starts in a process whose ranks share a GPU."""
# To sleep costs more than most waits last; only after so long it spares a core.
_AWAKE_SECONDS: Final = 0.05
_POLL_SECONDS: Final = 1e-3


class HungError(Exception):
    """The GPU did not finish in time."""


@dataclasses.dataclass(frozen=True, slots=True)
class Stream:
    """Where work is queued up."""

    handle: int


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """A moment on a stream."""

    handle: int


class Gpu:
    """The GPU of this process."""

    def __init__(self, libraries: Libraries, patience: float) -> None:
        """Starts CUDA.

        Args:
            libraries: What is called.
            patience: Seconds after which something that is waited for counts as hung.

        Raises:
            CannotRunError: There is no GPU.
        """
        self.libraries = libraries
        self._cuda: Library = libraries.cudart
        self._patience = patience
        count = ctypes.c_int()
        self._cuda.call("cudaGetDeviceCount", ctypes.byref(count))
        if not count.value:
            raise CannotRunError("CUDA sees no GPU: run this on a machine with one")
        self._cuda.call("cudaSetDevice", 0)
        least, highest = ctypes.c_int(), ctypes.c_int()
        self._cuda.call(
            "cudaDeviceGetStreamPriorityRange",
            ctypes.byref(least),
            ctypes.byref(highest),
        )
        self._least, self._highest = least.value, highest.value
        self.sm_count = self._attribute("cudaDevAttrMultiProcessorCount")
        major = self._attribute("cudaDevAttrComputeCapabilityMajor")
        minor = self._attribute("cudaDevAttrComputeCapabilityMinor")
        self.architecture = f"sm_{major}{minor}"

    def stream(self, *, urgent: bool) -> Stream:
        """A new stream; an urgent one's blocks are placed first, as NCCL's by XLA."""
        made = ctypes.c_void_p()
        self._cuda.call(
            "cudaStreamCreateWithPriority",
            ctypes.byref(made),
            value("cudaStreamNonBlocking"),
            self._highest if urgent else self._least,
        )
        assert made.value is not None
        return Stream(made.value)

    def event(self) -> Event:
        """A new event, with a time."""
        made = ctypes.c_void_p()
        self._cuda.call("cudaEventCreateWithFlags", ctypes.byref(made), 0)
        assert made.value is not None
        return Event(made.value)

    def memory(self, nbytes: int) -> int:
        """Zeros in the GPU's memory, until the process ends."""
        made = ctypes.c_void_p()
        self._cuda.call("cudaMalloc", ctypes.byref(made), nbytes)
        self._cuda.call("cudaMemset", made, 0, nbytes)
        assert made.value is not None
        return made.value

    def record(self, event: Event, stream: Stream) -> None:
        """Lets an event be when the stream has done what it was given so far."""
        self._cuda.call("cudaEventRecord", event.handle, stream.handle)

    def hold(self, stream: Stream, until: Event) -> None:
        """Lets a stream wait for an event."""
        self._cuda.call("cudaStreamWaitEvent", stream.handle, until.handle, 0)

    def happened(self, event: Event) -> bool:
        """Whether an event that was recorded has been."""
        status = self._cuda.status("cudaEventQuery", event.handle)
        if status == value("cudaErrorNotReady"):
            return False
        self._cuda.call("cudaEventQuery", event.handle)
        return True

    def wait(self, event: Event) -> None:
        """Returns when an event has been.

        Raises:
            HungError: It has not for too long.
        """
        start = time.monotonic()
        while not self.happened(event):
            waited = time.monotonic() - start
            if waited > self._patience:
                raise HungError(f"the GPU is not done after {self._patience:.0f} s")
            if waited > _AWAKE_SECONDS:
                time.sleep(_POLL_SECONDS)

    def finish(self, *streams: Stream) -> None:
        """Returns when streams have done all that they were given."""
        for stream in streams:
            event = self.event()
            self.record(event, stream)
            self.wait(event)
            self._cuda.call("cudaEventDestroy", event.handle)

    def seconds(self, start: Event, end: Event) -> float:
        """Between two events that have been."""
        found = ctypes.c_float()
        self._cuda.call(
            "cudaEventElapsedTime", ctypes.byref(found), start.handle, end.handle
        )
        return found.value * 1e-3

    def timed(self, stream: Stream, queue: Callable[[], None]) -> tuple[Event, Event]:
        """Events before and after what is queued on a stream."""
        start, end = self.event(), self.event()
        self.record(start, stream)
        queue()
        self.record(end, stream)
        return start, end

    def forget(self, *events: Event) -> None:
        """Gives events up."""
        for event in events:
            self._cuda.call("cudaEventDestroy", event.handle)

    def _attribute(self, name: str) -> int:
        found = ctypes.c_int()
        self._cuda.call("cudaDeviceGetAttribute", ctypes.byref(found), value(name), 0)
        return found.value
