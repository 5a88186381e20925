"""What NCCL writes about its choices, with NCCL_DEBUG=INFO for INIT and TUNING."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from lagom_jax.plan.setting import PROTOCOLS
from lagom_jax.tuner.rules import ALGORITHMS, FUNCTIONS

_FUNCTIONS: Final[dict[str, str]] = dict(
    zip(
        ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"),
        FUNCTIONS,
        strict=True,
    )
)
# As the head of NCCL's table has them.
_TITLES: Final[dict[str, str]] = dict(
    zip(
        ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"),
        ALGORITHMS,
        strict=True,
    )
)
_NAME: Final = "|".join(_FUNCTIONS)
_RAN: Final = re.compile(
    rf"NCCL INFO ({_NAME}): (\d+) Bytes -> Algo (\w+) proto (\w+) "
    r"channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\}"
)
_CLAMPED: Final = re.compile(
    rf"NCCL INFO ({_NAME}): tuner chunk size (\d+) exceeds buffer max (\d+)"
)
_HEAD: Final = re.compile(r"NCCL INFO\s+Algorithm\s+\|(.*)")
_LINE: Final = re.compile(rf"NCCL INFO\s+({_NAME}) \|(.*)")
_CELL: Final = re.compile(r"[\d.]+/\s*([\d.]+)\s*\|")
_CHANNELS: Final = re.compile(r"NCCL INFO (\d+) coll channels")
_PLUGIN: Final = "lagom tuner:"


@dataclasses.dataclass(frozen=True, slots=True)
class Ran:
    """How NCCL says it runs one call."""

    function: str
    """As the rules of the tuner name it."""
    per_rank: int
    """Bytes: of a rank's own part in an all-gather or reduce-scatter."""
    algorithm: str
    protocol: str
    channels: int

    def __str__(self) -> str:
        """In words."""
        plural = "s" * (self.channels > 1)
        return f"{self.algorithm}/{self.protocol}, {self.channels} channel{plural}"


@dataclasses.dataclass(frozen=True, slots=True)
class Clamped:
    """A chunk that NCCL was told, and that its buffer does not hold."""

    function: str
    told: int
    most: int


@dataclasses.dataclass(frozen=True, slots=True)
class Communicator:
    """What NCCL says about a communicator when it makes it."""

    channels: int
    """None of its calls uses more."""
    offered: frozenset[tuple[str, str, str]]
    """Functions with the algorithms and protocols that NCCL has for them here."""
    asks_plugin: bool
    """Whether our plugin has said something."""


class Log:
    """A file that NCCL writes to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0

    def new_lines(self) -> list[str]:
        """What was written since it was read last, in whole lines."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._read)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read += len(whole + newline)
        return whole.decode(errors="replace").splitlines()


def ran(lines: Iterable[str]) -> list[Ran]:
    """The calls that NCCL has scheduled.

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


def clamped(lines: Iterable[str]) -> list[Clamped]:
    """The chunks that NCCL has cut to its buffers."""
    return [
        Clamped(_FUNCTIONS[found[1]], int(found[2]), int(found[3]))
        for found in map(_CLAMPED.search, lines)
        if found
    ]


def communicator(lines: Iterable[str]) -> Communicator:
    """What is said of the communicator that is made.

    An algorithm has no bandwidth in NCCL's table where a communicator does not have
    it; a tuner finds -1 there.
    """
    channels, asks_plugin = 0, False
    offered: set[tuple[str, str, str]] = set()
    titles: list[str] = []
    for line in lines:
        asks_plugin = asks_plugin or _PLUGIN in line
        if found := _CHANNELS.search(line):
            channels = int(found[1])
        elif found := _HEAD.search(line):
            titles = [name for name in re.findall(r"\w+", found[1]) if name in _TITLES]
        elif found := _LINE.search(line):
            entries = [(_TITLES[name], p) for name in titles for p in PROTOCOLS]
            rates = map(float, _CELL.findall(found[2]))
            function = _FUNCTIONS[found[1]]
            offered |= {
                (function, *entry)
                for entry, rate in zip(entries, rates, strict=False)
                if rate > 0
            }
    return Communicator(channels, frozenset(offered), asks_plugin)
