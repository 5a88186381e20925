"""The log of NCCL, with NCCL_DEBUG=INFO: a function for each kind of line."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Final

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
_CELL: Final = re.compile(r"[\d.]+/\s*([\d.]+)\s*\|")
_CHANNELS: Final = re.compile(r"NCCL INFO (\d+) coll channels")
_PLUGIN: Final = re.compile(r"lagom tuner:|TUNER/Plugin: Using lagom ")


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
