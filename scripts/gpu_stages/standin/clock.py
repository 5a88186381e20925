"""A GPU with a virtual clock: streams, events, and what tasks do to each other.

Tasks slow each other by the model's own law, with constants that the environment may
set (`STANDIN_EVICTION` and so on), so that a fit has something to find.
"""

from __future__ import annotations

import dataclasses
import math
import os
import random
from collections import deque
from typing import Final

SMS: Final = 132
MEMORY_BYTES_PER_S: Final = 3.35232e12
FLOPS_PER_S: Final = 9.894e14
_L2_BYTES: Final = 52428800.0
# What the host takes for a call, and to ask whether an event is reached.
_CALL_SECONDS, _ASK_SECONDS = 4e-6, 100e-6
_LEAST_LEFT: Final = 0.05
_JITTER: Final = random.Random(1)


def number(name: str, usual: float) -> float:
    """A number that a test may set in the environment."""
    return float(os.environ.get(f"STANDIN_{name}", usual))


@dataclasses.dataclass(slots=True, eq=False)
class Kernel:
    """A kernel with its time alone and what it takes of the GPU."""

    left: float
    memory_share: float
    reuse: float = 0.0
    tiles: float = 0.0
    """0 where memory limits it."""
    begun: bool = False

    def __post_init__(self) -> None:
        self.left *= _JITTER.uniform(0.99, 1.01)


@dataclasses.dataclass(slots=True, eq=False)
class Collective:
    """A collective with its time alone and what all its ranks take of the GPU."""

    left: float
    parts: int
    channels: float
    bytes_in_flight: float
    bytes_per_s: float
    hangs: bool = False
    reduces_in_full: bool = False
    flag_passes: float = 0.0
    """Passes over memory that the flags of its protocol add."""
    arrived: int = 0

    def __post_init__(self) -> None:
        self.left *= _JITTER.uniform(0.99, 1.01)


@dataclasses.dataclass(slots=True, eq=False)
class Part:
    """One rank's part of a collective."""

    collective: Collective
    arrived: bool = False


@dataclasses.dataclass(slots=True, eq=False)
class Moment:
    """An event: a place on a stream, and when it was reached."""

    when: float | None = None


@dataclasses.dataclass(slots=True, eq=False)
class Hold:
    """A wait of one stream for an event."""

    until: Moment


Task = Kernel | Part | Moment | Hold


class Clock:
    """The streams of the GPU, and its time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._streams: list[deque[Task]] = []
        self._collectives = 0

    def stream(self) -> deque[Task]:
        """A new stream."""
        self._streams.append(deque())
        return self._streams[-1]

    def push(self, stream: deque[Task], task: Task) -> None:
        """Queues a task."""
        self._advance(_CALL_SECONDS)
        stream.append(task)

    def reached(self, moment: Moment) -> bool:
        """Whether an event is reached; asking takes time."""
        if moment.when is None:
            self._advance(_ASK_SECONDS)
        return moment.when is not None

    def hangs(self) -> bool:
        """Whether the next collective is one of those that a test lets hang."""
        self._collectives += 1
        return self._collectives >= number("HANGS", math.inf)

    def _advance(self, seconds: float) -> None:
        end = self.now + seconds
        while True:
            self._settle()
            heads = [stream[0] for stream in self._streams if stream]
            kernels = [task for task in heads if isinstance(task, Kernel)]
            running = list(
                dict.fromkeys(
                    task.collective
                    for task in heads
                    if isinstance(task, Part)
                    and task.collective.arrived == task.collective.parts
                    and not task.collective.hangs
                )
            )
            passes = number("PASSES", 2.0)
            moved = (one.bytes_per_s * (passes + one.flag_passes) for one in running)
            demand = sum(moved) / MEMORY_BYTES_PER_S
            pace: list[tuple[Kernel | Collective, float]] = [
                (kernel, _slowdown(kernel, running, demand)) for kernel in kernels
            ]
            for kernel, (_, slow) in zip(kernels, pace, strict=True):
                if not kernel.begun:
                    kernel.begun = True
                    # The delay itself is not stretched.
                    kernel.left += _start_delay(running) / slow
            pace += [(collective, max(1.0, demand)) for collective in running]
            step = min([end - self.now, *(task.left * slow for task, slow in pace)])
            for task, slow in pace:
                task.left -= step / slow
                if task.left < 1e-12:
                    task.left = 0.0
            self.now += step
            if self.now >= end:
                self._settle()
                return

    def _settle(self) -> None:
        """Takes what needs no more time off the streams."""
        changed = True
        while changed:
            changed = False
            for stream in self._streams:
                while stream and self._done(stream[0]):
                    stream.popleft()
                    changed = True

    def _done(self, task: Task) -> bool:
        match task:
            case Kernel():
                return task.left <= 0
            case Moment():
                task.when = self.now
                return True
            case Hold():
                return task.until.when is not None
            case Part():
                task.collective.arrived += not task.arrived
                task.arrived = True
                return task.collective.left <= 0


def _start_delay(running: list[Collective]) -> float:
    """Seconds that a kernel loses at its start beside collectives."""
    usual = (
        number("START_BESIDE_ALL_REDUCE", 12e-6)
        if one.reduces_in_full
        else number("START", 4.5e-6)
        for one in running
    )
    return max(usual, default=0.0)


def _slowdown(kernel: Kernel, running: list[Collective], demand: float) -> float:
    if not running:
        return 1.0
    left = SMS - min(sum(one.channels for one in running), SMS - 1)
    if kernel.tiles <= 0:
        by_sms = number("SATURATING", 0.6) * SMS / left
    else:
        by_sms = math.ceil(kernel.tiles / left) / math.ceil(kernel.tiles / SMS)
        if not number("PERSISTENT", 1):
            by_sms = max(by_sms, min(kernel.tiles, SMS) / left)
    # A law that the model does not have: what one tile waits for, all wait for.
    by_sms *= 1.0 + number("STATIC_TILES", 0.0) * (kernel.tiles > 0)
    in_flight = sum(one.bytes_in_flight for one in running)
    overflow = min(1.0, max(0.0, in_flight / _L2_BYTES - 1))
    again = number("EVICTION", 0.05) * overflow * kernel.reuse
    stretched = (1 + again) / max(_LEAST_LEFT, 1 - demand)
    return max(1.0, by_sms) * (1 + kernel.memory_share * (stretched - 1))


GPU: Final = Clock()
"""The one GPU of this process."""
