"""A profile of a few of a job's own steps, recorded once by `jax.profiler`."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import time
from collections.abc import Callable
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


def profile_for(*, on_gpus: bool) -> StepProfile | None:
    """A profile to be recorded, where a profiler times what a plan is for.

    Args:
        on_gpus: Whether steps run on GPUs.
    """
    return StepProfile() if on_gpus else None


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

    def recorded(self, number: int, run: Callable[[], Any]) -> Any:
        """Runs a step, and records it if it is one of those.

        Args:
            number: Its number.
            run: Runs it.
        """
        if number == FIRST and self._place is None:
            self._begin()
        try:
            result = run()
        except BaseException:
            self._stop(complete=False)
            raise
        if number in (FIRST - 1, LAST):
            # What is recorded are whole steps, and no others.
            whole = _has_ended(result)
            if number == LAST or not whole:
                self._stop(complete=whole)
        return result

    def forget(self) -> None:
        """Removes what was recorded."""
        self.folder = None
        if self._place is not None:
            shutil.rmtree(self._place, ignore_errors=True)
            atexit.unregister(self.forget)

    def _begin(self) -> None:
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

    def _stop(self, *, complete: bool) -> None:
        if not self._records:
            return
        self._records, began = False, time.perf_counter()
        try:
            _profiler.stop_trace()
        except Exception as error:
            LOG.info("steps are not profiled: %s", error)
            return
        LOG.debug("a profile was written in %.1f s", time.perf_counter() - began)
        if complete:
            self.folder = self._place


def _has_ended(result: Any) -> bool:
    try:
        jax.block_until_ready(result)
    except Exception as error:
        # The step has failed, which its caller learns.
        LOG.debug("a profiled step failed: %s", error)
        return False
    return True
