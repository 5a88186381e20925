"""The times of steps, taken beside them: no step waits for the one before."""

from __future__ import annotations

import functools
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import jax

from lagom_jax.online.steps import StepTime

_LONGEST_SECONDS: Final = 600.0


class StepClock:
    """Takes the time from the end of one step to the end of the next.

    A thread waits for the smallest result of each step, a loss usually, which nobody
    donates. Where a result cannot be waited for, that step has no time.

    Example:
        >>> import jax.numpy as jnp
        >>> clock = StepClock()
        >>> for _ in range(2):
        ...     clock.started(0, time.perf_counter(), jnp.ones(1), counts=True)
        >>> [one.candidate for one in clock.taken()]
        [0, 0]
    """

    def __init__(self) -> None:
        """Takes no time yet."""
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._times: list[StepTime] = []
        self._ended = 0.0
        self._thread: threading.Thread | None = None

    def started(self, candidate: int, at: float, result: Any, *, counts: bool) -> None:
        """Says that a step was begun.

        Args:
            candidate: The candidate that runs.
            at: When it was begun.
            result: Its results.
            counts: False where it comes with what happens only once.
        """
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="lagom_jax clock", daemon=True
            )
            self._thread.start()
        small = _smallest(result)
        self._work.put(functools.partial(self._wait, candidate, at, small, counts))

    def taken(self) -> tuple[StepTime, ...]:
        """The times of all steps since the last call, once these have ended."""
        if self._thread is None:
            return ()
        ended = threading.Event()
        self._work.put(ended.set)
        ended.wait(_LONGEST_SECONDS)
        found, self._times = tuple(self._times), []
        return found

    def stop(self) -> None:
        """Takes no more times."""
        self._times = []
        if self._thread is not None:
            self._work.put(None)
            self._thread = None

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def _wait(self, candidate: int, at: float, result: Any, counts: bool) -> None:
        if result is None:
            return
        try:
            result.block_until_ready()
        except Exception:
            # It was donated, or the step has failed, which its caller learns.
            self._ended = time.perf_counter()
            return
        now = time.perf_counter()
        self._times.append(StepTime(candidate, now - max(self._ended, at), counts))
        self._ended = now


def _smallest(result: Any) -> Any:
    arrays = [leaf for leaf in jax.tree.leaves(result) if isinstance(leaf, jax.Array)]
    return min(arrays, key=lambda array: array.size, default=None)
