"""Real NCCL under rules of ours: what is set for it, and rules that change."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from gpu_stages import nccl_log
from gpu_stages.cuda import nccl
from gpu_stages.cuda.nccl import Ranks
from gpu_stages.cuda.runtime import ENVIRONMENT, Gpu
from gpu_stages.nccl_log import Log
from gpu_stages.stage import CannotRunError
from lagom_jax.errors import TunerError
from lagom_jax.tuner import Control, Rules, built, exchange, pack
from lagom_jax.tuner.control import Agree
from lagom_jax.tuner.installed import PLUGIN

RANKS: Final = 2
"""On the one GPU. Each of their channels holds an SM, and each rank waits for the
other: if not all fit at a time, they wait for ever. Two ranks of 32 channels hold as
many SMs as one rank can at most, and leave some to kernels."""
MOST_CHANNELS: Final = 32


class Steering:
    """The rules of this process, and NCCL's own words about what it does.

    To be made before CUDA or NCCL is loaded: both read their settings once.
    """

    def __init__(self, log: Path, settings: Mapping[str, str], agree: Agree) -> None:
        """Sets the environment.

        Args:
            log: Where NCCL writes to.
            settings: More variables for NCCL.
            agree: How the processes of the communicator agree on rules.

        Raises:
            CannotRunError: There is no plugin.
        """
        try:
            plugin = built()
        except TunerError as error:
            raise CannotRunError(str(error)) from None
        self._agree = agree
        self._control = Control()
        self.log = Log(log)
        os.environ.update(
            ENVIRONMENT
            | self._control.environment()
            | {
                PLUGIN: str(plugin),
                "NCCL_DEBUG": "INFO",
                "NCCL_DEBUG_SUBSYS": "INIT,TUNING",
                "NCCL_DEBUG_FILE": str(log),
            }
            | dict(settings)
        )

    def hold(self, rules: Rules) -> None:
        """Lets rules hold from the next call on, in all processes.

        Raises:
            RuntimeError: The processes do not have the same.
        """
        if not exchange(self._control, pack(rules), self._agree):
            raise RuntimeError("the processes do not agree on the rules")

    def communicator(self) -> nccl_log.Communicator:
        """What NCCL has written about the communicator that was made last.

        Raises:
            CannotRunError: It does not ask the plugin.
        """
        lines = self.log.new_lines()
        said = nccl_log.communicator(lines)
        if not said.asks_plugin:
            why = next((line for line in lines if "uner plugin" in line), "")
            raise CannotRunError(
                f"NCCL does not load {os.environ[PLUGIN]}: install NCCL 2.23 or newer, "
                f"and see {self.log.path} {why}".strip()
            )
        return said


def alone(point: str, said: str) -> bool:
    """Agrees where one process has all ranks.

    Example:
        >>> alone("after 0", "1:00000abc")
        True
    """
    return True


def check_room(sms: int) -> None:
    """Refuses a GPU that does not hold all ranks at a time.

    Example:
        >>> check_room(132)
        >>> check_room(60)
        Traceback (most recent call last):
        ...
        gpu_stages.stage.CannotRunError: 2 ranks of 32 channels do not fit 60 SMs, and
        would wait for each other for ever: use a GPU with more of them

    Raises:
        CannotRunError: There are too few SMs.
    """
    if sms <= RANKS * MOST_CHANNELS:
        raise CannotRunError(
            f"{RANKS} ranks of {MOST_CHANNELS} channels do not fit {sms} SMs, and "
            "would wait for each other for ever: use a GPU with more of them"
        )


@contextlib.contextmanager
def all_ranks_here(gpu: Gpu, most_bytes: int, patience: float) -> Iterator[Ranks]:
    """All ranks of a communicator in this process, aborted at the end.

    Args:
        gpu: What they share.
        most_bytes: Of the largest call, as a tuner counts them.
        patience: Seconds after which it counts as hung.

    Raises:
        CannotRunError: They do not fit the GPU.
    """
    check_room(gpu.sm_count)
    ranks = Ranks(
        gpu,
        nccl.unique_id(gpu.libraries.nccl),
        RANKS,
        range(RANKS),
        channels=MOST_CHANNELS,
        most_bytes=most_bytes,
        patience=patience,
    )
    try:
        yield ranks
    finally:
        ranks.abort()
