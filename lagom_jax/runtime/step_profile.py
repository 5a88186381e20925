"""A profile of a few of a job's own steps, recorded once by `jax.profiler`."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import jax

from lagom_jax.runtime.say import LOG

FIRST: Final = 2
"""The number of the first step that is profiled: those before it come with what happens
only once."""
STEPS: Final = 2
LAST: Final = FIRST + STEPS - 1

_profiler: Any = jax.profiler


class StepProfile:
    """Records whole steps: it begins when all before has ended, and waits for the last.

    Where no profiler works, or somebody else's is at work, there is no profile.

    Example:
        >>> StepProfile().folder is None
        True
    """

    def __init__(self) -> None:
        """Records nothing yet."""
        self._place: Path | None = None
        self._records = False
        self.folder: Path | None = None
        """The folder of the profile, once it is complete."""

    def before(self, number: int) -> None:
        """Says that a step is about to begin.

        Args:
            number: Its number.
        """
        if number != FIRST or self._place is not None:
            return
        try:
            self._place = Path(tempfile.mkdtemp(prefix="lagom_jax-profile-"))
            atexit.register(self.forget)
            options = _profiler.ProfileOptions()
            # Nothing of Python: what the devices do is all that is asked.
            options.python_tracer_level = 0
            options.host_tracer_level = 1
            _profiler.start_trace(str(self._place), profiler_options=options)
        except Exception as error:
            LOG.info("steps are not profiled: %s", error)
        else:
            self._records = True

    def after(self, number: int, result: Any) -> None:
        """Says that a step was begun.

        Args:
            number: Its number.
            result: Its results.
        """
        if number not in (FIRST - 1, LAST):
            return
        try:
            # What is recorded are whole steps, and no others.
            jax.block_until_ready(result)
        except Exception as error:
            # The step has failed, which its caller learns.
            LOG.debug("a profiled step failed: %s", error)
            self.give_up()
        if not self._records or number < LAST:
            return
        began = time.perf_counter()
        if self._stopped() and self._place is not None:
            self.folder = self._place
            LOG.debug("a profile was written in %.1f s", time.perf_counter() - began)

    def give_up(self) -> None:
        """Ends it, whatever was recorded."""
        if self._records:
            self._stopped()

    def forget(self) -> None:
        """Removes what was recorded."""
        self.folder = None
        if self._place is not None:
            shutil.rmtree(self._place, ignore_errors=True)
            atexit.unregister(self.forget)

    def _stopped(self) -> bool:
        self._records = False
        try:
            _profiler.stop_trace()
        except Exception as error:
            LOG.info("steps are not profiled: %s", error)
            return False
        return True
