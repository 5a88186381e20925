"""Times of a kernel and a collective, alone and together."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from statistics import median
from typing import Any, Final

from gpu_stages.gpu import Gpu, Ranks, per_rank_bytes

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
class Pair:
    """Seconds of one launch, measured in turns: an entry for each turn."""

    kernel_alone: tuple[float, ...]
    kernel_together: tuple[float, ...]
    collective_alone: tuple[float, ...]
    collective_together: tuple[float, ...]

    @property
    def kernel_slowdown(self) -> float:
        """Median of time together over time alone of the kernel, turn by turn."""
        turns = zip(self.kernel_together, self.kernel_alone, strict=True)
        return median(one / other for one, other in turns)

    @property
    def collective_slowdown(self) -> float:
        """Median of time together over time alone of the collective."""
        turns = zip(self.collective_together, self.collective_alone, strict=True)
        return median(one / other for one, other in turns)


class Bench:
    """Measures pairs on one GPU."""

    def __init__(self, gpu: Gpu, ranks: Ranks, turns: int) -> None:
        self._gpu = gpu
        self._ranks = ranks
        self._turns = turns

    def alone(self, task: Task, count: int) -> float:
        """Seconds of a launch, of so many in a row."""
        # While the first runs, which is not timed, the others are queued.
        task.launch()
        start, end = self._gpu.timed(task.streams[0], lambda: task.times(count))
        self._gpu.wait(end)
        self._gpu.finish(*task.streams)
        return self._gpu.seconds(start, end) / count

    def usual_seconds(self, task: Task) -> float:
        """Approximate seconds of a launch, once everything is warm."""
        once = self.alone(task, 2)
        return self.alone(task, max(2, math.ceil(_KERNEL_SECONDS / once)))

    def size(self, function: str) -> int:
        """Bytes with which a collective takes long enough, as a tuner counts them."""
        first = per_rank_bytes(function, _FIRST_BYTES, self._ranks.world)
        seconds = self.usual_seconds(self.collective(function, first))
        grains = round(_FIRST_BYTES * _COLLECTIVE_SECONDS / seconds / _GRAIN_BYTES)
        return min(max(1, grains) * _GRAIN_BYTES, MOST_BYTES)

    def collective(self, function: str, per_rank: int) -> Task:
        """A collective of all ranks."""
        return Task(self._ranks.streams, lambda: self._ranks.launch(function, per_rank))

    def pair(self, kernel: Task, collective: Task) -> Pair:
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
        return Pair(*zip(*turns, strict=True))

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
        task.launch()
        start, end = gpu.timed(task.streams[0], lambda: task.times(count))
        gpu.wait(end)
        early = over.done
        gpu.finish(*task.streams, *other.streams)
        return None if early else gpu.seconds(start, end) / count
