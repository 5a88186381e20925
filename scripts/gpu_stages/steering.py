"""NCCL under rules of ours: its environment, and rules that change while it runs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from gpu_stages import nccl_log
from gpu_stages.gpu import FIRST_WITH_SHARED_GPUS, INSTALL, Gpu, Ranks
from gpu_stages.stage import CannotRunError
from lagom_jax.errors import TunerError
from lagom_jax.nccl_plugin import Control, Rules, built, exchange, pack
from lagom_jax.nccl_plugin.installed import PLUGIN
from lagom_jax.plan.transport import CtaPolicy

RANKS: Final = 2
"""Of a communicator on the one GPU. Each of their channels holds an SM, and each rank
waits for the other: if not all fit at a time, they wait for ever. Two ranks of 32
channels hold as many SMs as one rank can at most, and leave some to kernels."""
MOST_CHANNELS: Final = 32
ON_ONE_GPU: Final = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
"""Lets NCCL have several ranks on one GPU, from 2.30 on."""


class Steering:
    """Rules of this process, and NCCL's log of the calls under them.

    To be made before CUDA or NCCL is loaded: both read their settings once.
    """

    def __init__(self, log: Path, settings: Mapping[str, str]) -> None:
        """Sets the environment: NCCL's log, our plugin, and more settings.

        Raises:
            CannotRunError: There is no plugin.
        """
        try:
            plugin = built()
        except TunerError as error:
            raise CannotRunError(str(error)) from None
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
                **ON_ONE_GPU,
                **self._control.environment(),
                **settings,
            }
        )

    def hold(self, rules: Rules) -> None:
        """Lets rules hold from the next call on."""
        # There is no other process that could have others.
        exchange(self._control, pack(rules), lambda _point, _state: True)

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


@contextlib.contextmanager
def all_ranks(
    gpu: Gpu,
    most_bytes: int,
    *,
    windows: bool = False,
    policy: CtaPolicy = "default",
) -> Iterator[Ranks]:
    """All ranks of a communicator, aborted at the end.

    Args:
        gpu: Theirs.
        most_bytes: Of any call.
        windows: Whether their buffers lie in symmetric windows.
        policy: What the communicator spares SMs for.

    Raises:
        CannotRunError: They do not fit the GPU, or NCCL is too old.
    """
    if gpu.libraries.nccl_release() < FIRST_WITH_SHARED_GPUS:
        first = ".".join(map(str, FIRST_WITH_SHARED_GPUS))
        raise CannotRunError(
            f"NCCL {gpu.libraries.release_name()} has no ranks that share a GPU, "
            f"{first} has: {INSTALL}"
        )
    if gpu.sm_count <= RANKS * MOST_CHANNELS:
        raise CannotRunError(
            f"{RANKS} ranks of {MOST_CHANNELS} channels do not fit {gpu.sm_count} SMs, "
            "and would wait for each other for ever: use a GPU with more of them"
        )
    ranks = Ranks(
        *(gpu, RANKS),
        channels=MOST_CHANNELS,
        most_bytes=most_bytes,
        windows=windows,
        policy=policy,
    )
    try:
        yield ranks
    finally:
        ranks.abort()
