"""Work in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


def in_background(work: Callable[[], T]) -> Future[T]:
    """Begins work that nobody has to wait for, not even the end of the process.

    Signals and their handlers meet the thread that waits. What a handler raises there
    is the user's; what the work raises is what `exception` of the answer returns.

    Args:
        work: The function to call.

    Example:
        >>> in_background(lambda: 1).result()
        1
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            # Whatever ends it, somebody waits for its end.
            future.set_exception(error)

    threading.Thread(target=run, name="lagom_jax", daemon=True).start()
    return future


def every(seconds: float, work: Callable[[], None]) -> threading.Event:
    """Begins work that is done again and again, until the answer is set.

    Args:
        seconds: Between two times, and before the first.
        work: The function to call.

    Example:
        >>> calls = []
        >>> over = every(0.001, lambda: calls.append(1) or over.set())
        >>> over.wait(60), calls
        (True, [1])
    """
    over = threading.Event()

    def run() -> None:
        while not over.wait(seconds):
            work()

    threading.Thread(target=run, name="lagom_jax", daemon=True).start()
    return over


class Interruptible(Generic[T]):
    """Work that is waited for, until somebody calls this process away.

    Others do not know that: they are answered all the same, and what comes of it holds
    for the next call.

    Example:
        >>> Interruptible().outcome(lambda: 1 // 0)
        ZeroDivisionError('integer division or modulo by zero')
    """

    def __init__(self) -> None:
        """There is no work yet."""
        self._future: Future[T] | None = None
        self._stop: Callable[[], None] = lambda: None

    @property
    def under_way(self) -> bool:
        """True if its end is not known here."""
        return self._future is not None

    def outcome(
        self, work: Callable[[], T], stop: Callable[[], None] = lambda: None
    ) -> T | Exception:
        """The result of the work, or the error that it ends with.

        Args:
            work: Begun now, unless earlier work is under way.
            stop: Ends it early.
        """
        if self._future is None:
            self._stop, self._future = stop, in_background(work)
        future = self._future
        try:
            error = future.exception()
        except BaseException:
            self._stop()
            raise
        self._future = None
        if error is None:
            return future.result()
        if not isinstance(error, Exception):
            raise error
        return error
