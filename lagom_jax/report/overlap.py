"""The overlap report: what the step's communication costs, and why.

Everything in it is derived from a program, its timeline and its prices; nothing here
knows how the program was compiled or how the report is shown.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping

from lagom_jax.cluster import Cluster
from lagom_jax.cost.contention import Contention
from lagom_jax.cost.prices import Price, Prices
from lagom_jax.cost.replay import replay
from lagom_jax.cost.span import span_of
from lagom_jax.cost.timeline import TaskTime, Timeline
from lagom_jax.hlo.collective import Collective
from lagom_jax.hlo.provenance import compiled_for_gpu
from lagom_jax.report.causes import Surroundings, cause
from lagom_jax.schedule.program import (
    Block,
    Branch,
    Kernel,
    Launch,
    Loop,
    Program,
    Run,
    Task,
)
from lagom_jax.schedule.slack import independent_seconds
from lagom_jax.units import counted

# How many collectives, the most exposed first, get their independent work looked up.
_LOOKED_UP = 512


@dataclasses.dataclass(frozen=True, slots=True)
class Beside:
    """Computation that ran while a collective was under way."""

    what: str
    """The kind of kernel: `matmul`, `attention`, `fusion`, ..."""
    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class CollectiveReport:
    """One collective of the step, its figures summed over its executions."""

    name: str
    kind: str
    bytes: int
    """Per execution, on the larger side of the op."""
    element_type: str
    operands: int
    """How many arrays the compiler combined into this one launch."""
    group_size: int
    """Devices in a group; source-target pairs of a point-to-point exchange."""
    groups: int
    domains: int
    """Scale-up domains (NVLink or PCIe) that one group spans."""
    executions: float
    seconds: float
    hidden_seconds: float
    exposed_seconds: float
    sync: bool
    """It runs on the compute stream, so nothing can hide it."""
    pipelined: bool
    bound: str
    """What sets its time: a link's kind, or `latency`."""
    link_use: float
    """The part of that link's peak rate it reaches while it runs, from 0 to 1."""
    hidden_by: tuple[Beside, ...]
    """What computation it ran beside, the most first."""
    why: str
    """Why it is exposed; empty where little of it is."""
    op_name: str
    source: str


@dataclasses.dataclass(frozen=True, slots=True)
class KindTotal:
    """All collectives of one kind, or all kernels of one kind."""

    kind: str
    count: int
    executions: float
    bytes: float
    seconds: float
    exposed_seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """Where the time of one training step goes, on one device of a cluster.

    All times are predicted. `step_seconds` is the sum of `compute_seconds`,
    `exposed_seconds` and `waiting_seconds`.
    """

    program: str
    description: str
    """What was compiled, in a line; empty where only a dump is known."""
    cluster: str
    devices: int
    step_seconds: float
    compute_seconds: float
    communication_seconds: float
    exposed_seconds: float
    waiting_seconds: float
    contention_seconds: float
    """The part of `compute_seconds` by which collectives slowed kernels down."""
    peak_memory_bytes: int | None
    """Device memory at the fullest moment; None where only a dump is known."""
    memory_bytes: int
    """The memory of the cluster's GPU."""
    pricing: str
    """Where the prices come from, in words."""
    collectives: tuple[CollectiveReport, ...]
    """The most exposed first."""
    collective_kinds: tuple[KindTotal, ...]
    kernel_kinds: tuple[KindTotal, ...]
    notes: tuple[str, ...]
    """What the reader must know to trust the figures."""
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    measured: bool = False
    """Whether the prices are the times of a profile as far as it has them."""

    @property
    def hidden_share(self) -> float:
        """The part of communication that computation hides; 1 without any."""
        if not self.communication_seconds:
            return 1.0
        return 1.0 - self.exposed_seconds / self.communication_seconds

    def to_json(self) -> str:
        """The report as JSON text; docs/report.md describes the keys."""
        from lagom_jax.report.document import to_json

        return to_json(self)

    def __str__(self) -> str:
        """The report as a table without colours, 140 columns wide."""
        from lagom_jax.report.text import to_text

        return to_text(self)


def report_program(
    program: Program,
    cluster: Cluster,
    prices: Prices,
    contention: Contention | None = None,
    *,
    pricing: str,
    measured: bool = False,
    name: str = "",
    description: str = "",
    peak_memory_bytes: int | None = None,
    versions: Mapping[str, str] | None = None,
    notes: Iterable[str] = (),
) -> Report:
    """Replays a program and reports its overlaps.

    Args:
        program: The step.
        cluster: What it runs on.
        prices: What each task costs alone.
        contention: What tasks do to each other; nothing by default.
        pricing: Where the prices come from, in words.
        measured: Whether they are the times of a profile as far as it has them.
        name: What to call the step; by default the module's name.
        description: What was compiled, in a line.
        peak_memory_bytes: Device memory at the fullest moment, where known.
        versions: Of the compiler that made the program, where known.
        notes: What the reader must know of how the program came here.
    """
    timeline = replay(program, prices, contention)
    return Report(
        program=name or program.name,
        description=description,
        cluster=cluster.name,
        devices=program.devices,
        step_seconds=timeline.step_seconds,
        compute_seconds=timeline.totals.compute_seconds,
        communication_seconds=timeline.totals.communication_seconds,
        exposed_seconds=timeline.totals.exposed_seconds,
        waiting_seconds=timeline.totals.waiting_seconds,
        contention_seconds=timeline.totals.contention_seconds,
        peak_memory_bytes=peak_memory_bytes,
        memory_bytes=cluster.gpu.memory_bytes,
        pricing=pricing,
        collectives=_collectives(program, timeline, cluster),
        collective_kinds=_collective_kinds(timeline),
        kernel_kinds=_kernel_kinds(timeline),
        notes=(*notes, *_notes(program, timeline, cluster)),
        versions=dict(versions or {}),
        measured=measured,
    )


def _collectives(
    program: Program,
    timeline: Timeline,
    cluster: Cluster,
) -> tuple[CollectiveReport, ...]:
    synchronous = {c for c, _, sync in program.collectives() if sync}
    ranked = sorted(
        timeline.collectives().items(),
        key=lambda item: (-item[1].exposed_seconds, -item[1].seconds, item[0].name),
    )
    alone = _alone_by_name(program, timeline.prices)
    slack = independent_seconds([c for c, _ in ranked[:_LOOKED_UP]], alone)
    return tuple(
        _collective(
            collective,
            times,
            timeline.prices[collective],
            Surroundings(collective in synchronous, slack.get(collective)),
            cluster,
        )
        for collective, times in ranked
    )


def _collective(
    collective: Collective,
    times: TaskTime,
    price: Price,
    surroundings: Surroundings,
    cluster: Cluster,
) -> CollectiveReport:
    beside: defaultdict[str, float] = defaultdict(float)
    for kernel, seconds in times.beside.items():
        beside[kernel.work.kind] += seconds
    types = collective.element_types
    return CollectiveReport(
        name=collective.name,
        kind=collective.kind,
        bytes=collective.bytes,
        element_type=types[0] if len(types) == 1 else "mixed",
        operands=collective.operand_count,
        group_size=collective.groups.size,
        groups=collective.groups.count,
        domains=span_of(collective.groups, cluster).domains,
        executions=times.executions,
        seconds=times.seconds,
        hidden_seconds=times.hidden_seconds,
        exposed_seconds=times.exposed_seconds,
        sync=surroundings.synchronous,
        pipelined=collective.is_pipelined,
        bound=price.bound,
        link_use=price.resource_share,
        hidden_by=tuple(
            Beside(what, seconds)
            for what, seconds in sorted(beside.items(), key=lambda item: -item[1])
        ),
        why=cause(collective, times, price, surroundings),
        op_name=collective.op_name,
        source=collective.source,
    )


def _alone_by_name(program: Program, prices: Mapping[Task, Price]) -> dict[str, float]:
    """Seconds per execution of everything that computes, by instruction name."""
    alone: dict[str, float] = {}

    def total(block: Block) -> float:
        return sum(map(of, block))

    def of(node: object) -> float:
        if isinstance(node, Run | Launch):
            task = node.task
            if not isinstance(task, Kernel):
                return 0.0
            # A loop that never runs has tasks without a price.
            alone[task.name] = prices[task].seconds if task in prices else 0.0
            return alone[task.name]
        if isinstance(node, Loop):
            alone[node.name] = node.trips * total(node.body)
            return alone[node.name]
        if isinstance(node, Branch):
            alone[node.name] = max(map(total, node.arms))
            return alone[node.name]
        return 0.0

    total(program.body)
    return alone


def _collective_kinds(timeline: Timeline) -> tuple[KindTotal, ...]:
    return _totals(
        (c.kind, c.bytes, times) for c, times in timeline.collectives().items()
    )


def _kernel_kinds(timeline: Timeline) -> tuple[KindTotal, ...]:
    return _totals(
        (k.work.kind, k.work.bytes_read + k.work.bytes_written, times)
        for k, times in timeline.kernels().items()
    )


def _totals(parts: Iterable[tuple[str, int, TaskTime]]) -> tuple[KindTotal, ...]:
    totals: dict[str, KindTotal] = {}
    for kind, nbytes, times in parts:
        sofar = totals.get(kind, KindTotal(kind, 0, 0, 0, 0.0, 0.0))
        totals[kind] = KindTotal(
            kind,
            sofar.count + 1,
            sofar.executions + times.executions,
            sofar.bytes + nbytes * times.executions,
            sofar.seconds + times.seconds,
            sofar.exposed_seconds + times.exposed_seconds,
        )
    return tuple(sorted(totals.values(), key=lambda total: -total.seconds))


def _notes(program: Program, timeline: Timeline, cluster: Cluster) -> Iterable[str]:
    if program.module is not None and not compiled_for_gpu(program.module):
        yield (
            "nothing in this program says that it was compiled for a GPU; one that was "
            "compiled for the CPU (jax without a GPU makes such) says nothing about "
            "overlaps on a GPU. Give lagom the step itself, or a dump from a GPU job"
        )
    synchronous = [sync for _, _, sync in program.collectives()]
    if len(synchronous) > 1 and all(synchronous) and _before_hopper(cluster):
        yield (
            f"all collectives are synchronous, which is XLA's default on the "
            f"{cluster.gpu.title}; see what --option "
            "xla_gpu_enable_latency_hiding_scheduler=true changes"
        )
    loops = program.unknown_loops()
    if loops:
        yield (
            f"{counted(len(loops), 'loop')} without a known number of trips counted "
            f"once: {', '.join(loops[:3])}"
        )
    custom = [k for k in timeline.kernels() if k.work.kind == "custom"]
    if custom:
        targets = sorted({k.work.target or k.name for k in custom})
        yield (
            f"{counted(len(custom), 'custom call')} priced by operands and results "
            f"alone, for want of a formula: {', '.join(targets[:4])}"
        )


def _before_hopper(cluster: Cluster) -> bool:
    return int(cluster.gpu.compute_capability.partition(".")[0]) < 9
