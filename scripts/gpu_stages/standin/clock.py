"""A GPU with a virtual clock: streams, events, and kernels that collectives slow.

How much is set by the environment (`STANDIN_SLOWDOWN`), so that there is something to
find.
"""

from __future__ import annotations

import dataclasses
import math
import os
import random
from collections import deque
from typing import Final

# What the host takes for a call, and to ask whether an event is reached.
_CALL_SECONDS, _ASK_SECONDS = 4e-6, 100e-6
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
class Moment:
    """An event: a place on a stream, and when it was reached."""

    when: float | None = None


@dataclasses.dataclass(slots=True, eq=False)
class Hold:
    """A wait of one stream for an event."""

    until: Moment


Task = Work | Moment | Hold


class Clock:
    """The streams of the GPU, and its time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.streams: list[deque[Task]] = []
        self._collectives = 0

    def push(self, stream: deque[Task], task: Task) -> None:
        """Queues a task."""
        self._advance(_CALL_SECONDS)
        stream.append(task)

    def reached(self, moment: Moment) -> bool:
        """True if an event is reached; asking takes time."""
        if moment.when is None:
            self._advance(_ASK_SECONDS)
        return moment.when is not None

    def hangs(self) -> bool:
        """True if the next collective is one of those that a test lets hang."""
        self._collectives += 1
        return self._collectives >= _number("HANGS", math.inf)

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
            slow = _number("SLOWDOWN", 1.1) if any(w.parts for w in running) else 1.0
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
        if isinstance(task, Moment):
            task.when = self.now
            return True
        if isinstance(task, Hold):
            return task.until.when is not None
        return task.left <= _DONE


def _number(name: str, usual: float) -> float:
    return float(os.environ.get(f"STANDIN_{name}", usual))


GPU: Final = Clock()
"""The one GPU of this process."""
