"""Work that a caller waits for, and can be called away from."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator
from typing import Generic, TypeVar

from lagom_jax.errors import InDoubtError

T = TypeVar("T")


class OwnError(Exception):
    """An error of lagom_jax, and none of the user's code."""

    def __init__(self, error: Exception) -> None:
        """Takes the error."""
        super().__init__(str(error))
        self.error = error

    @classmethod
    @contextlib.contextmanager
    def marked(cls) -> Generator[None, None, None]:
        """Marks what is raised in the block, but for doubt, which ends the process."""
        try:
            yield
        except InDoubtError:
            raise
        except Exception as error:
            raise cls(error) from error


class Background(Generic[T]):
    """Work in a thread of its own.

    Signals and their handlers meet the thread that waits. What a handler raises there
    is the user's, whatever it is called, and goes straight to the caller; what the work
    raises comes from the work.

    Example:
        >>> Background(lambda: 1).result()
        1
    """

    def __init__(self, work: Callable[[], T]) -> None:
        """Begins.

        Args:
            work: What to do.
        """
        self._done = threading.Event()
        self._found: list[T] = []
        self._failed: Exception | None = None

        def run() -> None:
            try:
                self._found.append(work())
            except Exception as error:
                self._failed = error
            finally:
                self._done.set()

        threading.Thread(target=run, name="lagom_jax", daemon=True).start()

    def result(self, stop: Callable[[], None] = lambda: None) -> T:
        """Waits for what comes of it; it can be asked for again.

        Args:
            stop: Called when the caller is called away, to let the work end soon.
        """
        try:
            self._done.wait()
        except BaseException:
            stop()
            raise
        if self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed
        return self._found[0]
