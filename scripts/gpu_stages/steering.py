"""NCCL under rules of ours that change while it runs, and verdicts on its calls.

With NCCL_DEBUG=INFO there is a log; each kind of its lines has a function here.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from gpu_stages.gpu import ON_ONE_GPU, RANKS
from gpu_stages.stage import CannotRunError, Check, Outcome, Request
from lagom_jax.errors import TunerError
from lagom_jax.nccl_plugin import Control, Rule, Rules, Scope, built, exchange, pack
from lagom_jax.nccl_plugin.installed import PLUGIN
from lagom_jax.nccl_plugin.rules import FUNCTIONS
from lagom_jax.plan.setting import PROTOCOLS
from lagom_jax.plan.transport import Transport

_FUNCTIONS: Final[dict[str, str]] = dict(
    zip(
        ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"),
        FUNCTIONS,
        strict=True,
    )
)
_NAME: Final = "|".join(_FUNCTIONS)
_RAN: Final = re.compile(
    rf"NCCL INFO ({_NAME}): (\d+) Bytes -> Algo (\w+) proto (\w+) "
    r"channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\}"
)
_CLAMPED: Final = re.compile(
    rf"NCCL INFO ({_NAME}): tuner chunk size (\d+) exceeds buffer max"
)
_OFF_RINGS: Final = re.compile(
    rf"NCCL INFO ({_NAME}) \[(Symmetric|Copy Engine)\]: \d+ Bytes -> (?:Kernel (\w+))?"
)
_MULTICAST: Final = re.compile(r"MC(_|$)")
_HEAD: Final = re.compile(r"NCCL INFO\s+Algorithm\s+\|\s*Tree\s*\|\s*Ring\s*\|")
_LINE: Final = re.compile(rf"NCCL INFO\s+({_NAME}) \|(.*)")
# What a communicator does not have has -1 for a rate, or 0.
_CELL: Final = re.compile(r"-?[\d.]+/\s*(-?[\d.]+)\s*\|")
_CHANNELS: Final = re.compile(r"NCCL INFO (\d+) coll channels")
_PLUGIN: Final = re.compile(r"lagom tuner:|TUNER/Plugin: Using lagom ")
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

    def offer(self) -> Offer:
        """Everything that the communicator that was made last can do.

        Raises:
            CannotRunError: It does not ask the plugin.
        """
        lines = self.new_lines()
        found = offer(lines)
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


@dataclasses.dataclass(frozen=True, slots=True)
class Ran:
    """One call as NCCL ran it."""

    function: str
    """As the tuner's rules name it."""
    per_rank: int
    """Bytes: of a rank's own part in an all-gather or reduce-scatter."""
    algorithm: str
    protocol: str
    channels: int

    def __str__(self) -> str:
        """For people."""
        plural = "s" * (self.channels > 1)
        return f"{self.algorithm}/{self.protocol}, {self.channels} channel{plural}"

    @property
    def setting(self) -> tuple[str, str, str, int]:
        """Function, algorithm, protocol and channels."""
        return self.function, self.algorithm, self.protocol, self.channels


@dataclasses.dataclass(frozen=True, slots=True)
class Offer:
    """Everything that a communicator can do."""

    channels: int
    """None of its calls uses more."""
    offered: frozenset[tuple[str, str, str]]
    """Functions with the algorithms and protocols that NCCL has for them here."""
    asks_plugin: bool
    """Whether it has loaded our plugin."""


def ran(lines: Iterable[str]) -> list[Ran]:
    """Calls that NCCL has scheduled.

    Example:
        >>> ran(["gpu:7:7 [0] NCCL INFO AllGather: 4096 Bytes -> Algo RING proto LL "
        ...     "channel{Lo..Hi}={0..3}"])[0]
        Ran(function='all-gather', per_rank=4096, algorithm='ring', protocol='ll',
        channels=4)
    """
    return [
        Ran(
            _FUNCTIONS[found[1]],
            int(found[2]),
            found[3].lower(),
            found[4].lower(),
            int(found[6]) - int(found[5]) + 1,
        )
        for found in map(_RAN.search, lines)
        if found
    ]


def transports(function: str, lines: Sequence[str]) -> frozenset[Transport]:
    """The transports that calls of a function ran by.

    Args:
        function: As the tuner's rules name it.
        lines: Of NCCL's log, with NCCL_DEBUG_SUBSYS=TUNING.

    Example:
        >>> line = ("gpu:7:7 [0] NCCL INFO AllGather [Symmetric]: 4096 Bytes -> Kernel "
        ...     "AllGather_STMC nchannels 2 nthreads 512 nWorks 1")
        >>> transports("all-gather", [line])
        frozenset({'switch'})
    """
    seen: set[Transport] = set()
    if any(one.function == function for one in ran(lines)):
        seen.add("rings")
    for name, how, kernel in (m.groups() for m in map(_OFF_RINGS.search, lines) if m):
        if _FUNCTIONS[name] != function:
            continue
        if how == "Copy Engine":
            seen.add("copy engines")
        else:
            multicast = _MULTICAST.search(kernel or "")
            seen.add("switch" if multicast else "symmetric kernels")
    return frozenset(seen)


def clamped(lines: Iterable[str]) -> set[tuple[str, int]]:
    """Functions, and chunks of the plugin's that NCCL's buffers did not hold."""
    found = map(_CLAMPED.search, lines)
    return {(_FUNCTIONS[one[1]], int(one[2])) for one in found if one}


def offer(lines: Iterable[str]) -> Offer:
    """The table that NCCL writes when it makes a communicator.

    An algorithm has no bandwidth in NCCL's table where a communicator does not have
    it; a tuner finds -1 there. The first part of the table has trees and rings.
    """
    channels, asks_plugin, first_part = 0, False, False
    offered: set[tuple[str, str, str]] = set()
    entries = [(a, p) for a in ("tree", "ring") for p in PROTOCOLS]
    for line in lines:
        asks_plugin = asks_plugin or _PLUGIN.search(line) is not None
        if found := _CHANNELS.search(line):
            channels = int(found[1])
        elif "Algorithm" in line:
            first_part = _HEAD.search(line) is not None
        elif first_part and (found := _LINE.search(line)):
            rates = map(float, _CELL.findall(found[2]))
            offered |= {
                (_FUNCTIONS[found[1]], *entry)
                for entry, rate in zip(entries, rates, strict=False)
                if rate > 0
            }
    return Offer(channels, frozenset(offered), asks_plugin)
