"""NCCL under rules of ours: its environment, and rules that change while it runs."""

from __future__ import annotations

import os

from gpu_stages import nccl_log
from gpu_stages.gpu import ON_ONE_GPU, RANKS
from gpu_stages.stage import CannotRunError, Request
from lagom_jax.errors import TunerError
from lagom_jax.nccl_plugin import Control, Rule, Rules, Scope, built, exchange, pack
from lagom_jax.nccl_plugin.installed import PLUGIN


class Steering:
    """Rules of this process, and NCCL's log of the calls under them.

    To be made before CUDA or NCCL is loaded: both read their settings once.
    """

    def __init__(self, request: Request, **settings: str) -> None:
        """Sets the environment: NCCL's log, our plugin, and more settings.

        Raises:
            CannotRunError: There is no plugin.
        """
        try:
            plugin = built()
        except TunerError as error:
            raise CannotRunError(str(error)) from None
        self._control = Control()
        self.log = nccl_log.Log(request.path / "nccl.log")
        os.environ.update(
            {
                # Two streams that share a queue to the GPU are served one after the
                # other, and ranks that wait for each other there would wait for ever.
                "CUDA_DEVICE_MAX_CONNECTIONS": "32",
                PLUGIN: str(plugin),
                "NCCL_DEBUG": "INFO",
                "NCCL_DEBUG_SUBSYS": "INIT,TUNING",
                "NCCL_DEBUG_FILE": str(self.log.path),
                **ON_ONE_GPU,
                **self._control.environment(),
                **settings,
            }
        )

    def hold(self, *rules: Rule) -> None:
        """Lets rules hold from the next call on."""
        image = pack(Rules((Scope(RANKS, rules=rules),)))
        # There is no other process that could have others.
        exchange(self._control, image, lambda _point, _state: True)

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
