"""Ends training between two steps when someone asks for it."""

import os
import signal
from types import FrameType

import jax
from jax.experimental import multihost_utils


class Stop:
    """Listens to Ctrl-C and to SIGTERM, by which clusters take machines back.

    All processes have to stop after the same step, although the signal may reach only
    one of them. jax agrees on a step for SIGTERM, so that Ctrl-C becomes one.
    """

    def __init__(self) -> None:
        self._alone = jax.process_count() == 1
        self._asked = False
        signal.signal(signal.SIGINT, self._interrupt)
        if self._alone:
            signal.signal(signal.SIGTERM, self._interrupt)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        # Whoever presses Ctrl-C twice does not want to wait.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if self._alone:
            self._asked = True
        else:
            os.kill(os.getpid(), signal.SIGTERM)

    def after(self, step: int) -> bool:
        """Whether this step is to be the last one; asked once after each."""
        if self._alone:
            return self._asked
        return multihost_utils.reached_preemption_sync_point(step)
