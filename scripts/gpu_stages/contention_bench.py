"""Times of a kernel and a collective, alone and together."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from statistics import median
from typing import Any, Final

from gpu_stages.gpu import Gpu, Ranks

MOST_BYTES: Final = 512 << 20
# Long enough that starts, ends and the grain of events do not count.
_KERNEL_SECONDS: Final = 2e-3
_COLLECTIVE_SECONDS: Final = 1.5e-3
_COLLECTIVES: Final = 2
_FIRST_BYTES: Final = 32 << 20
_GRAIN_BYTES: Final = 1 << 20
# The other one's expected time over its time alone, to begin with.
_EXPECTED_SLOWDOWN: Final = 1.5
_MOST_LAUNCHES: Final = 400


class NotCoveredError(Exception):
    """One ended too early while the other was timed, however often it was repeated."""


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """Something that can be launched again and again."""

    streams: tuple[Any, ...]
    launch: Callable[[], None]

    def times(self, count: int) -> None:
        """Launches it so often."""
        for _ in range(count):
            self.launch()


@dataclasses.dataclass(frozen=True, slots=True)
class Slowed:
    """Seconds of one launch, alone and beside another: an entry for each turn."""

    alone: tuple[float, ...]
    together: tuple[float, ...]

    @property
    def slowdown(self) -> float:
        """Median of time together over time alone, turn by turn."""
        turns = zip(self.together, self.alone, strict=True)
        return median(together / alone for together, alone in turns)


class Bench:
    """Measures pairs on one GPU."""

    def __init__(self, gpu: Gpu, ranks: Ranks, turns: int) -> None:
        self._gpu = gpu
        self._ranks = ranks
        self._turns = turns

    def alone(self, task: Task, count: int) -> float:
        """Seconds of a launch, of so many in a row."""
        start, end = self._timed(task, count)
        self._gpu.finish(*task.streams)
        return self._gpu.seconds(start, end) / count

    def usual_seconds(self, task: Task) -> float:
        """Approximate seconds of a launch, once everything is warm."""
        once = self.alone(task, 2)
        return self.alone(task, max(2, math.ceil(_KERNEL_SECONDS / once)))

    def size(self, function: str) -> int:
        """Bytes with which a collective takes long enough, as a tuner counts them."""
        seconds = self.usual_seconds(self.collective(function, _FIRST_BYTES))
        grains = round(_FIRST_BYTES * _COLLECTIVE_SECONDS / seconds / _GRAIN_BYTES)
        return min(max(1, grains) * _GRAIN_BYTES, MOST_BYTES)

    def collective(self, function: str, nbytes: int) -> Task:
        """A collective of all ranks."""
        return Task(self._ranks.streams, lambda: self._ranks.launch(function, nbytes))

    def pair(self, kernel: Task, collective: Task) -> tuple[Slowed, Slowed]:
        """The two, alone and together, in turns.

        Turns let what changes slowly, such as the clock, meet all alike.

        Raises:
            NotCoveredError: One of them cannot be kept running while the other does.
        """
        of_kernel, of_both = self.usual_seconds(kernel), self.usual_seconds(collective)
        kernels = max(2, math.ceil(_KERNEL_SECONDS / of_kernel))
        over_kernels = of_kernel * kernels / of_both
        over_both = of_both * _COLLECTIVES / of_kernel
        turns = [
            (
                self.alone(kernel, kernels),
                self._together(kernel, kernels, collective, over_kernels),
                self.alone(collective, _COLLECTIVES),
                self._together(collective, _COLLECTIVES, kernel, over_both),
            )
            for _ in range(self._turns)
        ]
        self._ranks.check()
        first, second, third, fourth = zip(*turns, strict=True)
        return Slowed(first, second), Slowed(third, fourth)

    def _together(self, task: Task, count: int, other: Task, ratio: float) -> float:
        """Seconds of a launch while the other runs from before it to after it.

        Args:
            task: Timed.
            count: Its launches.
            other: Not timed.
            ratio: Time of all of them over that of one launch of the other, alone.
        """
        launches = math.ceil(_EXPECTED_SLOWDOWN * ratio) + 3
        while launches <= _MOST_LAUNCHES:
            seconds = self._covered(task, count, other, launches)
            if seconds is not None:
                return seconds
            launches *= 2
        raise NotCoveredError(f"{launches // 2} launches of one ended before the other")

    def _covered(
        self, task: Task, count: int, other: Task, launches: int
    ) -> float | None:
        """Seconds of a launch; None where the other was done before."""
        gpu = self._gpu
        other.launch()
        begun = gpu.record(other.streams[0])
        other.times(launches)
        over = gpu.record(other.streams[0])
        for stream in task.streams:
            stream.wait_event(begun)
        start, end = self._timed(task, count)
        early = over.done
        gpu.finish(*task.streams, *other.streams)
        return None if early else gpu.seconds(start, end) / count

    def _timed(self, task: Task, count: int) -> tuple[Any, Any]:
        """Events around so many launches, which are done."""
        # While the first runs, which is not timed, the others are queued.
        task.times(1)
        start = self._gpu.record(task.streams[0])
        task.times(count)
        end = self._gpu.record(task.streams[0])
        self._gpu.wait(end)
        return start, end
