"""Work in a thread of its own."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from lagom_jax.errors import InDoubtError

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, eq=False)
class _Task(Generic[T]):
    """Work in a thread of its own; it is done once, however often it is begun."""

    work: Callable[[], T]
    stop: Callable[[], None] = lambda: None
    future: Future[T] = dataclasses.field(default_factory=Future[T])
    _begun: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def begin(self) -> Future[T]:
        threading.Thread(target=self._run, name="lagom_jax", daemon=True).start()
        return self.future

    def _run(self) -> None:
        if not self._begun.acquire(blocking=False):
            return
        try:
            self.future.set_result(self.work())
        except BaseException as error:
            # Whatever ends it, somebody waits for its end.
            self.future.set_exception(error)


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
    return _Task(work).begin()


def every(seconds: float, work: Callable[[], None]) -> threading.Event:
    """Begins work that is done again and again, until the answer is set.

    Args:
        seconds: Between two times, and before the first.
        work: The function to call.

    Example:
        >>> called = threading.Event()
        >>> over = every(0.001, called.set)
        >>> called.wait(60), over.set()
        (True, None)
    """
    over = threading.Event()

    def run() -> None:
        while not over.wait(seconds):
            work()

    threading.Thread(target=run, name="lagom_jax", daemon=True).start()
    return over


class Interruptible:
    """Work that is waited for, until somebody calls this process away.

    Others do not know that: they are answered all the same. A signal's handler may
    raise at any point of who waits, as the work begins or has just ended, so whatever
    is to come of the work it has to do itself.

    Example:
        >>> Interruptible().error(lambda: 1 // 0)
        ZeroDivisionError('integer division or modulo by zero')
    """

    def __init__(self) -> None:
        """There is no work yet."""
        self._task: _Task[None] | None = None

    @property
    def under_way(self) -> bool:
        """True if it has not ended, or has ended in doubt, where it stays."""
        return self._task is not None

    def error(
        self, work: Callable[[], object], stop: Callable[[], None] = lambda: None
    ) -> Exception | None:
        """The error that the work ends with; None for none.

        Args:
            work: Begun now, unless earlier work is under way. Where that has ended just
                now it begins all the same, and has to see for itself.
            stop: Ends it early.
        """

        def whole() -> None:
            try:
                work()
            except InDoubtError:
                raise
            except BaseException:
                self._task = None
                raise
            self._task = None

        task = self._task
        if task is None:
            task = self._task = _Task(whole, stop)
        try:
            # Who was called away as it began cannot know whether it did.
            error = task.begin().exception()
        except BaseException:
            task.stop()
            raise
        if error is None or isinstance(error, Exception):
            return error
        raise error
