"""Times of a kernel and a collective, alone and together."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from gpu_stages.gpu import Gpu, Ranks

MOST_BYTES: Final = 512 << 20
# Long enough that starts, ends and the grain of events do not count.
_KERNEL_SECONDS: Final = 2e-3
_COLLECTIVE_SECONDS: Final = 1.5e-3
_COLLECTIVES: Final = 2
_FIRST_BYTES: Final = 32 << 20
_GRAIN_BYTES: Final = 1 << 20
# How much longer than alone the other one is expected to take, to begin with.
_EXPECTED_SLOWDOWN: Final = 1.5
_MOST_COVER: Final = 400


class NotCoveredError(Exception):
    """One ended too early while the other was timed, however often it was repeated."""


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """Something that can be launched again and again."""

    streams: tuple[Any, ...]
    launch: Callable[[], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """Seconds of one launch, measured in turns: an entry for each turn."""

    kernel_alone: Sequence[float]
    kernel_together: Sequence[float]
    collective_alone: Sequence[float]
    collective_together: Sequence[float]

    @property
    def kernel_slowdowns(self) -> list[float]:
        """Time together over time alone of the kernel, turn by turn."""
        return _over(self.kernel_together, self.kernel_alone)

    @property
    def collective_slowdowns(self) -> list[float]:
        """Time together over time alone of the collective, turn by turn."""
        return _over(self.collective_together, self.collective_alone)


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
        start, end = self._gpu.timed(
            task.streams[0], lambda: _repeat(task.launch, count)
        )
        self._gpu.wait(end)
        self._gpu.finish(*task.streams)
        return self._gpu.seconds(start, end) / count

    def usual_seconds(self, task: Task) -> float:
        """Approximate seconds of a launch, once everything is warm."""
        once = self.alone(task, 2)
        return self.alone(task, max(2, math.ceil(_KERNEL_SECONDS / once)))

    def size(self, function: str, ratio: int) -> int:
        """Bytes of a rank's part with which a collective takes long enough.

        Args:
            function: As the rules of the tuner name it.
            ratio: Bytes that a tuner counts, for each of a rank's part.
        """
        first = _FIRST_BYTES // ratio
        seconds = self.usual_seconds(self.collective(function, first))
        wanted = first * _COLLECTIVE_SECONDS / seconds
        grains = max(1, round(wanted / _GRAIN_BYTES))
        return min(grains * _GRAIN_BYTES, MOST_BYTES // ratio)

    def collective(self, function: str, per_rank: int) -> Task:
        """A collective of all ranks."""
        return Task(self._ranks.streams, lambda: self._ranks.launch(function, per_rank))

    def pair(self, kernel: Task, collective: Task) -> Pair:
        """The two, alone and together, in turns.

        Turns let what changes slowly, such as the clock, meet all alike.

        Raises:
            NotCoveredError: One of them cannot be kept running while the other does.
        """
        seconds = self.usual_seconds(kernel), self.usual_seconds(collective)
        kernels = max(2, math.ceil(_KERNEL_SECONDS / seconds[0]))
        over_kernels = _Cover(seconds[0] * kernels / seconds[1])
        over_collectives = _Cover(seconds[1] * _COLLECTIVES / seconds[0])
        turns = [
            (
                self.alone(kernel, kernels),
                self._together(kernel, kernels, collective, over_kernels),
                self.alone(collective, _COLLECTIVES),
                self._together(collective, _COLLECTIVES, kernel, over_collectives),
            )
            for _ in range(self._turns)
        ]
        self._ranks.check()
        return Pair(*zip(*turns, strict=True))

    def _together(self, task: Task, count: int, other: Task, cover: _Cover) -> float:
        """Seconds of a launch while the other runs from before it to after it."""
        while True:
            seconds = self._covered(task, count, other, cover.launches)
            if seconds is not None:
                return seconds
            cover.lengthen()

    def _covered(self, task: Task, count: int, other: Task, cover: int) -> float | None:
        """Seconds of a launch; None where the other was done before."""
        gpu = self._gpu
        other.launch()
        begun = gpu.record(other.streams[0])
        _repeat(other.launch, cover)
        over = gpu.record(other.streams[0])
        for stream in task.streams:
            stream.wait_event(begun)
        task.launch()
        start, end = gpu.timed(task.streams[0], lambda: _repeat(task.launch, count))
        gpu.wait(end)
        early = over.done
        gpu.finish(*task.streams, *other.streams)
        return None if early else gpu.seconds(start, end) / count


@dataclasses.dataclass(slots=True)
class _Cover:
    """Number of launches of the other task that outlast what is timed."""

    ratio: float
    """Time to be covered over the time of one launch, both alone."""
    launches: int = 0

    def __post_init__(self) -> None:
        self.launches = math.ceil(_EXPECTED_SLOWDOWN * self.ratio) + 3

    def lengthen(self) -> None:
        """Doubles it."""
        self.launches *= 2
        if self.launches > _MOST_COVER:
            raise NotCoveredError(
                f"{self.launches // 2} launches of the one ended before the other"
            )


def _repeat(launch: Callable[[], None], count: int) -> None:
    for _ in range(count):
        launch()


def _over(several: Sequence[float], others: Sequence[float]) -> list[float]:
    return [one / other for one, other in zip(several, others, strict=True)]
