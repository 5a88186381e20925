"""Work in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

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


class Interruptible:
    """Work that is waited for, until somebody calls this process away.

    Others do not know that: they are answered all the same, and what comes of it holds
    for the next call.

    Example:
        >>> Interruptible().error(lambda: (lambda: 1 // 0, lambda: None))
        ZeroDivisionError('integer division or modulo by zero')
    """

    def __init__(self) -> None:
        """There is no work yet."""
        self._future: Future[None] | None = None
        self._stop: Callable[[], None] = lambda: None

    @property
    def under_way(self) -> bool:
        """True if its end is not known here."""
        return self._future is not None

    def error(
        self, begin: Callable[[], tuple[Callable[[], None], Callable[[], None]]]
    ) -> BaseException | None:
        """The error that the work ends with; None for none.

        Args:
            begin: Makes the work, unless it is under way, and what ends it early.
        """
        if self._future is None:
            work, self._stop = begin()
            self._future = in_background(work)
        try:
            error = self._future.exception()
        except BaseException:
            self._stop()
            raise
        self._future = None
        if error is not None and not isinstance(error, Exception):
            raise error
        return error
