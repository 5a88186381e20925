"""The times of steps, taken beside them: no step waits for the one before."""

from __future__ import annotations

import queue
import threading
import time
from typing import Any, Final, NamedTuple

import jax

from lagom_jax.online.steps import StepTime

_LONGEST_SECONDS: Final = 600.0


class _Started(NamedTuple):
    candidate: int
    at: float
    result: Any
    counts: bool


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
        self._steps: queue.SimpleQueue[_Started | None] = queue.SimpleQueue()
        self._times: list[StepTime] = []
        self._ended = 0.0
        self._waiting: threading.Event | None = None
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
        self._steps.put(_Started(candidate, at, _smallest(result), counts))

    def taken(self) -> tuple[StepTime, ...]:
        """The times of all steps since the last call, once these have ended."""
        if self._thread is None:
            return ()
        self._waiting = threading.Event()
        self._steps.put(None)
        self._waiting.wait(_LONGEST_SECONDS)
        found, self._times = tuple(self._times), []
        return found

    def stop(self) -> None:
        """Takes no more times."""
        self._times = []
        if self._thread is not None:
            self._steps.put(_Started(-1, 0.0, None, False))
            self._thread = None

    def _run(self) -> None:
        while True:
            step = self._steps.get()
            if step is None:
                assert self._waiting is not None
                self._waiting.set()
                continue
            if step.candidate < 0:
                return
            try:
                if step.result is None:
                    continue
                step.result.block_until_ready()
            except Exception:
                # It was donated, or the step has failed, which its caller learns.
                self._ended = time.perf_counter()
                continue
            now = time.perf_counter()
            seconds = now - max(self._ended, step.at)
            self._ended = now
            self._times.append(StepTime(step.candidate, seconds, step.counts))


def _smallest(result: Any) -> Any:
    arrays = [leaf for leaf in jax.tree.leaves(result) if isinstance(leaf, jax.Array)]
    return min(arrays, key=lambda array: array.size, default=None)
