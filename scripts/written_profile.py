"""Profiles as GPUs write them, written by hand: planes of devices, lines of streams.

The messages are those of the profiler's `xplane.proto`, declared as far as needed. The
shape follows what XLA's GPU tracer records: a plane `/device:GPU:N` per device, a line
`Stream #N(...)` per stream, an event per kernel, named after it, with the instruction
in the statistics `hlo_op` and `hlo_module`.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Iterable, Mapping
from typing import Any

from lagom_jax.compile.schema import message_classes
from lagom_jax.cost.prices import Prices
from lagom_jax.cost.replay import price_of
from lagom_jax.cost.timeline import Timeline
from lagom_jax.hlo.collective import Collective
from lagom_jax.program.program import Program

_STEPS, _GPUS = 2, 2
_MESSAGES = {
    "XSpace": "1 XPlane* planes",
    "XPlane": """
        1 int64 id
        2 string name
        3 XLine* lines
        4 EventEntry* event_metadata
        5 StatEntry* stat_metadata""",
    "EventEntry": "1 int64 key\n2 XMetadata value",
    "StatEntry": "1 int64 key\n2 XMetadata value",
    "XMetadata": "1 int64 id\n2 string name",
    "XLine": """
        1 int64 id
        2 string name
        3 int64 timestamp_ns
        4 XEvent* events""",
    "XEvent": """
        1 int64 metadata_id
        2 int64 offset_ps
        3 int64 duration_ps
        4 XStat* stats""",
    "XStat": "1 int64 metadata_id\n4 int64 int64_value\n5 string str_value",
}


WrittenEvent = tuple[str, float, float, Mapping[str, object]]
"""A kernel's name, its start and duration in microseconds, and statistics."""
Planes = Mapping[str, Mapping[str, Iterable[WrittenEvent]]]


@functools.cache
def _space() -> Any:
    return message_classes("scripts/xplane.proto", "scripts", _MESSAGES)["XSpace"]


def profile(planes: Planes) -> bytes:
    """The bytes of a profile.

    Args:
        planes: `{plane: {line: [(kernel, start us, duration us, stats), ...]}}`.
    """
    space = _space()()
    for plane_name, lines in planes.items():
        plane = space.planes.add(name=plane_name)
        events: dict[str, int] = {}
        stats: dict[str, int] = {}

        def number(table: dict[str, int], name: str) -> int:
            return table.setdefault(name, len(table) + 1)

        for line_number, (line_name, found) in enumerate(lines.items()):
            line = plane.lines.add(id=line_number, name=line_name, timestamp_ns=1000)
            for kernel, start, duration, given in found:
                event = line.events.add(
                    metadata_id=number(events, kernel),
                    offset_ps=round(start * 1e6),
                    duration_ps=round(duration * 1e6),
                )
                for name, value in given.items():
                    stat = event.stats.add(metadata_id=number(stats, name))
                    if isinstance(value, str):
                        stat.str_value = value
                    else:
                        stat.int64_value = value
        for table, entries in (
            (events, plane.event_metadata),
            (stats, plane.stat_metadata),
        ):
            for name, key in table.items():
                entry = entries.add(key=key)
                entry.value.id, entry.value.name = key, name
    return space.SerializeToString()


def profile_of(
    program: Program, timeline: Timeline, prices: Prices, noise: float, seed: str
) -> bytes:
    """The profile of a few steps of a program on a machine that is stood in for.

    Args:
        program: The program.
        timeline: Its step on that machine.
        prices: Of that machine, of which a profile has kernels without their gaps.
        noise: The share by which each execution may take longer.
        seed: Another one gives other noise.
    """
    chance = random.Random(seed)
    planes: dict[str, dict[str, list[WrittenEvent]]] = {}
    for gpu in range(_GPUS):
        lines = planes[f"/device:GPU:{gpu}"] = {"Stream #1": [], "Stream #2": []}
        at = 0.0
        for _ in range(_STEPS):
            for task, times in timeline.tasks.items():
                runs = max(1, round(times.executions)) if times.seconds > 0 else 0
                gap = price_of(task, prices).gap_seconds
                for _ in range(runs):
                    longer = math.exp(abs(chance.gauss(0.0, noise)))
                    took = 1e6 * longer * (times.seconds / times.executions - gap)
                    called = isinstance(task, Collective)
                    kernel = "ncclDevKernel" if called else f"kernel_of_{task.name}"
                    told = {"hlo_op": task.name, "hlo_module": program.name}
                    line = lines["Stream #2" if called else "Stream #1"]
                    line.append((kernel, at, took, told))
                    at += took
    return profile(planes)
