"""The time that a job spends on planning."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Generator
from typing import Final

from lagom_jax.errors import PlanError
from lagom_jax.planner import Budget
from lagom_jax.units import in_seconds


class Allowance:
    """The time that one job spends on planning, and its one planning at a time.

    Example:
        >>> with Allowance().rest_of(Budget(seconds=60.0)) as budget:
        ...     budget.seconds
        60.0
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds = 0.0

    @contextlib.contextmanager
    def rest_of(self, budget: Budget) -> Generator[Budget, None, None]:
        """The rest of a budget; others wait until the block has ended.

        Raises:
            PlanError: Nothing is left.
        """
        with self._lock:
            left = budget.seconds - self._seconds
            if left <= 0:
                raise PlanError(
                    f"this job has planned for {in_seconds(self._seconds)}, all that "
                    f"it may (budget, --lagom_seconds: {in_seconds(budget.seconds)})"
                )
            begun = time.monotonic()
            try:
                yield dataclasses.replace(budget, seconds=left)
            finally:
                self._seconds += time.monotonic() - begun


ALLOWANCE: Final = Allowance()
"""The one of this process."""
