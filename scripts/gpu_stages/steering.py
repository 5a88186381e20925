"""NCCL under rules of ours that change while it runs, and verdicts on its calls."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Sequence
from typing import Final

from gpu_stages import nccl_log
from gpu_stages.gpu import ON_ONE_GPU, RANKS
from gpu_stages.stage import CannotRunError, Check, Outcome, Request
from lagom_jax.errors import TunerError
from lagom_jax.nccl_plugin import Control, Rule, Rules, Scope, built, exchange, pack
from lagom_jax.nccl_plugin.installed import PLUGIN

_MOST_FINDINGS: Final = 8


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
        self._log = request.path / "nccl.log"
        self._read = 0
        os.environ.update(
            {
                # Two streams that share a queue to the GPU are served one after the
                # other, and ranks that wait for each other there would wait for ever.
                "CUDA_DEVICE_MAX_CONNECTIONS": "32",
                PLUGIN: str(plugin),
                "NCCL_DEBUG": "INFO",
                "NCCL_DEBUG_SUBSYS": "INIT,TUNING",
                "NCCL_DEBUG_FILE": str(self._log),
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

    def new_lines(self) -> list[str]:
        """Whole lines of NCCL's log that were added since the last call."""
        if not self._log.exists():
            return []
        with self._log.open("rb") as file:
            file.seek(self._read)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read += len(whole + newline)
        return whole.decode(errors="replace").splitlines()

    def offer(self) -> nccl_log.Offer:
        """Everything that the communicator that was made last can do.

        Raises:
            CannotRunError: It does not ask the plugin.
        """
        lines = self.new_lines()
        found = nccl_log.offer(lines)
        if not found.asks_plugin:
            why = next((line for line in lines if "lugin" in line), "")
            raise CannotRunError(
                f"NCCL does not load {os.environ[PLUGIN]}: install NCCL 2.23 or newer, "
                f"and see {self._log} {why}".strip()
            )
        return found


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """A call, with what was asked for and what NCCL's log says."""

    name: str
    """Its function and its bytes."""
    when: str
    """The circumstances, which have a check of their own: `in windows`."""
    asked: str
    logged: str
    """NCCL's words."""
    why: str = ""
    """The difference; empty if it ran as asked."""


def outcome_of(
    calls: Sequence[Call],
    release: str,
    *,
    failed: Sequence[str] = (),
    left_out: Sequence[str] = (),
) -> Outcome:
    """The answer that calls of a release of NCCL give; `failed` is what ended them."""
    wrong = [call for call in calls if call.why]
    name, missed = f"NCCL {release}", Counter(call.when for call in wrong)
    checks = [
        Check(f"calls {when}, of {count}, that {name} runs otherwise", missed[when], 0)
        for when, count in Counter(call.when for call in calls).items()
    ]
    if failed:
        checks.append(Check("failures of NCCL", len(failed), 0))
    return Outcome(
        checks=tuple(checks),
        findings=(
            *failed,
            *(
                f"NCCL was asked to run {call.name} {call.when} by {call.asked}, and "
                f"logs: {call.logged} ({call.why})."
                for call in wrong[:_MOST_FINDINGS]
            ),
        ),
        left_out=tuple(left_out),
    )
