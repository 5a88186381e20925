"""From the events of a profile to what each instruction took, every time it ran."""

from __future__ import annotations

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from lagom_jax.hlo.kinds import KINDS


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """One kernel that ran on one device."""

    device: str
    stream: str
    start: float
    """Nanoseconds; only the order counts."""
    seconds: float
    kernel: str
    """The name of the kernel that ran."""
    op: str = ""
    """The instruction that launched it; empty where the profile does not say."""
    module: str = ""
    run: str = ""
    """The execution of the program that it belongs to, where the profile has it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """Measured times of one instruction, one for each execution.

    Example:
        >>> fusion = Measured("fusion.1", (1e-3, 1.1e-3, 5e-3), 1.0)
        >>> fusion.median, fusion.count
        (0.0011, 3)
        >>> round(fusion.spread, 2)
        1.82
    """

    name: str
    seconds: tuple[float, ...]
    """Every execution. Of a collective that several devices recorded, the shortest of
    the devices' times: the others had to wait for the last one to arrive."""
    per_step: float
    """Executions in a step, on one device."""

    @property
    def count(self) -> int:
        """The number of recorded executions."""
        return len(self.seconds)

    @property
    def median(self) -> float:
        """The median of the executions, in seconds."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Between the first and the third quartile, as a part of the median."""
        if self.count < 2 or not self.median:
            return 0.0
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return (high - low) / self.median


Runs = list[tuple[float, float]]
"""Start and seconds of each execution."""


def executions(events: Iterable[Event]) -> dict[str, dict[str, Runs]]:
    """Start and duration of every execution, by instruction, then by device.

    An instruction may launch several kernels, one after another on its stream. They are
    one execution until another instruction, another run of the program, or one of the
    same kernels comes.

    Example:
        >>> events = [Event("gpu0", "s", 0, 1.0, "gemm", "dot"),
        ...           Event("gpu0", "s", 1, 0.5, "sum", "dot"),
        ...           Event("gpu0", "s", 2, 1.0, "gemm", "dot")]
        >>> executions(events)["dot"]["gpu0"]
        [(0, 1.5), (2, 1.0)]
    """
    found: dict[str, dict[str, Runs]] = defaultdict(lambda: defaultdict(list))
    last: dict[tuple[str, str], tuple[str, str]] = {}
    kernels: dict[tuple[str, str], set[str]] = {}
    for event in sorted(events, key=lambda e: e.start):
        lane = (event.device, event.stream)
        name = event.op or event.kernel
        runs = found[name][event.device]
        goes_on = last.get(lane) == (name, event.run)
        if goes_on and event.kernel not in kernels[lane]:
            start, seconds = runs[-1]
            runs[-1] = (start, seconds + event.seconds)
            kernels[lane].add(event.kernel)
        else:
            runs.append((event.start, event.seconds))
            kernels[lane] = {event.kernel}
        last[lane] = (name, event.run)
    return {name: dict(devices) for name, devices in found.items()}


def count_steps(events: Sequence[Event]) -> int:
    """Counts the times that a device ran the program.

    Where the events do not say which run they belong to, it is taken from the
    instruction that ran least often; every step runs each of them at least once, but
    for those in branches.
    """
    runs: dict[str, set[str]] = defaultdict(set)
    for event in events:
        if event.run:
            runs[event.device].add(event.run)
    if runs:
        return max(len(found) for found in runs.values())
    counts = [
        len(found)
        for devices in executions(events).values()
        for found in devices.values()
    ]
    return min(counts, default=0)


def measure(events: Sequence[Event], steps: int) -> Mapping[str, Measured]:
    """Measured times of each instruction, or of each kernel without one."""
    nccl = {e.op or e.kernel for e in events if e.kernel.lower().startswith("nccl")}
    return {
        name: Measured(
            name,
            _together(devices, name in nccl or _is_collective(name)),
            statistics.median(map(len, devices.values())) / max(1, steps),
        )
        for name, devices in executions(events).items()
    }


def main_module(events: Iterable[Event]) -> str:
    """The module in which the devices spent the most time."""
    spent: defaultdict[str, float] = defaultdict(float)
    for event in events:
        if event.op:
            spent[event.module] += event.seconds
    return max(spent, key=lambda name: (spent[name], name), default="")


def _is_collective(name: str) -> bool:
    return any(name.startswith(kind) for kind in KINDS)


def _together(devices: Mapping[str, Runs], collective: bool) -> tuple[float, ...]:
    lists = [[seconds for _, seconds in sorted(runs)] for runs in devices.values()]
    if collective and len({len(one) for one in lists}) == 1:
        return tuple(min(same) for same in zip(*lists, strict=True))
    return tuple(seconds for one in lists for seconds in one)
