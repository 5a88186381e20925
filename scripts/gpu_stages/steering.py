"""NCCL under rules of ours: its environment, and rules that change while it runs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from gpu_stages import gpu as gpus
from gpu_stages import nccl_log
from gpu_stages.gpu import FIRST_WITH_SHARED_GPUS, INSTALL, Gpu, Ranks
from gpu_stages.stage import CannotRunError
from lagom_jax.errors import TunerError
from lagom_jax.tuner import Control, Rules, built, exchange, pack
from lagom_jax.tuner.control import Agree
from lagom_jax.tuner.installed import PLUGIN

RANKS: Final = 2
"""Of a communicator on the one GPU. Each of their channels holds an SM, and each rank
waits for the other: if not all fit at a time, they wait for ever. Two ranks of 32
channels hold as many SMs as one rank can at most, and leave some to kernels."""
MOST_CHANNELS: Final = 32
ON_ONE_HOST: Final = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
"""Lets NCCL have several ranks on one GPU, from 2.30 on."""
OVER_LOOPBACK: Final = {
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_NET": "Socket",
    "NCCL_IB_DISABLE": "1",
    "NCCL_MNNVL_ENABLE": "0",
}
"""The network of ranks that NCCL takes for hosts."""


def as_host(rank: int) -> dict[str, str]:
    """Variables that make NCCL take a rank for a host of its own.

    Example:
        >>> as_host(1)["NCCL_HOSTID"]
        'gpu_check-1'
    """
    return {"NCCL_HOSTID": f"gpu_check-{rank}", **OVER_LOOPBACK}


def check_release(release: tuple[int, ...]) -> None:
    """Refuses a release without ranks of one process that share a GPU.

    Raises:
        CannotRunError: It is such a one.

    Example:
        >>> check_release((2, 28, 9))
        Traceback (most recent call last):
        ...
        gpu_stages.stage.CannotRunError: NCCL 2.28.9 has no ranks that share a GPU, 2.30
        has: pip install 'lagom_jax[gpu-check]'
    """
    if release < FIRST_WITH_SHARED_GPUS:
        name, first = (".".join(map(str, x)) for x in (release, FIRST_WITH_SHARED_GPUS))
        raise CannotRunError(
            f"NCCL {name} has no ranks that share a GPU, {first} has: {INSTALL}"
        )


class Steering:
    """Rules of this process, and NCCL's log of the calls under them.

    To be made before CUDA or NCCL is loaded: both read their settings once.
    """

    def __init__(self, log: Path, settings: Mapping[str, str], agree: Agree) -> None:
        """Sets the environment.

        Args:
            log: File that NCCL writes to.
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
        self.log = nccl_log.Log(log)
        os.environ.update(
            {
                # Two streams that share a queue to the GPU are served one after the
                # other, and ranks that wait for each other there would wait for ever.
                "CUDA_DEVICE_MAX_CONNECTIONS": "32",
                PLUGIN: str(plugin),
                "NCCL_DEBUG": "INFO",
                "NCCL_DEBUG_SUBSYS": "INIT,TUNING",
                "NCCL_DEBUG_FILE": str(log),
                **self._control.environment(),
                **settings,
            }
        )

    def hold(self, rules: Rules) -> None:
        """Lets rules hold from the next call on, in all processes.

        Raises:
            RuntimeError: The processes do not have the same.
        """
        if not exchange(self._control, pack(rules), self._agree):
            raise RuntimeError("the processes do not agree on the rules")

    def offer(self) -> nccl_log.Offer:
        """Everything that the communicator that was made last can do.

        Raises:
            CannotRunError: It does not ask the plugin.
        """
        lines = self.log.new_lines()
        found = nccl_log.offer(lines)
        if not found.asks_plugin:
            why = next((line for line in lines if "lugin" in line), "")
            raise CannotRunError(
                f"NCCL does not load {os.environ[PLUGIN]}: install NCCL 2.23 or newer, "
                f"and see {self.log.path} {why}".strip()
            )
        return found


def alone(point: str, state: str) -> bool:
    """Agreement where one process has all ranks.

    Example:
        >>> alone("after 0", "1:00000abc")
        True
    """
    return True


def check_room(sms: int) -> None:
    """Refuses a GPU that does not hold all ranks at a time.

    Raises:
        CannotRunError: There are too few SMs.

    Example:
        >>> check_room(132)
        >>> check_room(60)
        Traceback (most recent call last):
        ...
        gpu_stages.stage.CannotRunError: 2 ranks of 32 channels do not fit 60 SMs, and
        would wait for each other for ever: use a GPU with more of them
    """
    if sms <= RANKS * MOST_CHANNELS:
        raise CannotRunError(
            f"{RANKS} ranks of {MOST_CHANNELS} channels do not fit {sms} SMs, and "
            "would wait for each other for ever: use a GPU with more of them"
        )


@contextlib.contextmanager
def all_ranks_here(gpu: Gpu, most_bytes: int) -> Iterator[Ranks]:
    """All ranks of a communicator in this process, aborted at the end.

    Args:
        gpu: The GPU that they share.
        most_bytes: Of the largest call, as a tuner counts them.

    Raises:
        CannotRunError: They do not fit the GPU, or NCCL is too old.
    """
    check_release(gpu.libraries.nccl_release())
    check_room(gpu.sm_count)
    ranks = Ranks(
        gpu,
        gpus.new_unique_id(gpu.libraries),
        RANKS,
        range(RANKS),
        channels=MOST_CHANNELS,
        most_bytes=most_bytes,
    )
    try:
        yield ranks
    finally:
        ranks.abort()
