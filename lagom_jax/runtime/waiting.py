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
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=run, name="lagom_jax", daemon=True).start()
    return future
