"""The pace of long work: how much of it is done, and how long the rest may take."""

from __future__ import annotations

import time
from collections.abc import Callable

from lagom_jax.units import in_seconds


class Pace:
    """Parts of a work, counted as they end.

    Example:
        >>> now = iter([0.0, 30.0])
        >>> pace = Pace(8, clock=lambda: next(now))
        >>> pace.words
        ''
        >>> pace.ended()
        >>> pace.words
        ' (1 of at most 8 done, at most about 210 s left)'
    """

    def __init__(
        self,
        most: int,
        seconds: float = float("inf"),
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begins.

        Args:
            most: Parts, at most.
            seconds: After so long no part is begun.
            clock: Tells the time.
        """
        self.most = most
        self._seconds, self._clock = seconds, clock
        self._begun = clock()
        # A list, since parts may end in several threads at once.
        self._done: list[None] = []

    def ended(self) -> None:
        """Counts a part that has ended."""
        self._done.append(None)

    @property
    def words(self) -> str:
        """Parts that are done, and the longest that the others may take.

        Empty before the first has ended, and where nothing is left.
        """
        done = len(self._done)
        if not 0 < done < self.most:
            return ""
        gone = self._clock() - self._begun
        rest = gone / done * (self.most - done)
        # What is under way when the time is over is waited for.
        rest = min(rest, max(0.0, self._seconds - gone) + gone / done)
        return (
            f" ({done} of at most {self.most} done, at most about "
            f"{in_seconds(round(rest))} left)"
        )
