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
from lagom_jax.cost.recording import record
from lagom_jax.cost.span import span_of
from lagom_jax.cost.timeline import TaskTime, Timeline
from lagom_jax.decompose.cutting_advice import advise
from lagom_jax.decompose.form_savings import FormPrices
from lagom_jax.hlo.collective import Collective
from lagom_jax.hlo.module import Module
from lagom_jax.plan import StepIntervals
from lagom_jax.program.program import (
    Block,
    Branch,
    Kernel,
    Launch,
    Loop,
    Program,
    Run,
    Task,
)
from lagom_jax.program.slack import independent_seconds
from lagom_jax.report.causes import Surroundings, cause, verdict
from lagom_jax.report.figures import (
    Beside,
    CollectiveReport,
    FigureSource,
    KindTotal,
    LinkUse,
    Report,
    SizeBand,
)
from lagom_jax.report.memory import memory_over_step
from lagom_jax.report.origin import place_of
from lagom_jax.report.program_notes import program_notes
from lagom_jax.report.tracks import Loads, tracks_of
from lagom_jax.report.wan_report import between_regions, wan_seconds

# How many collectives, the most exposed first, get their independent work looked up.
_LOOKED_UP = 512


def report_program(
    program: Program,
    cluster: Cluster,
    prices: Prices,
    contention: Contention | None = None,
    *,
    pricing: str,
    measured: bool = False,
    intervals: StepIntervals | None = None,
    name: str = "",
    description: str = "",
    peak_memory_bytes: int | None = None,
    versions: Mapping[str, str] | None = None,
    notes: Iterable[str] = (),
    cautions: Iterable[str] = (),
    loads: Loads | None = None,
    sources: Iterable[FigureSource] = (),
) -> Report:
    """Replays a program and reports its overlaps.

    Args:
        program: The step.
        cluster: What it runs on.
        prices: What each task costs alone.
        contention: What tasks do to each other; nothing by default.
        pricing: Where the prices come from, in words.
        measured: Whether they are the times of a profile as far as it has them.
        intervals: How sure the times of the step and its parts are.
        name: What to call the step; by default the module's name.
        description: What was compiled, in a line.
        peak_memory_bytes: Device memory at the fullest moment, where known.
        versions: Of the compiler that made the program, where known.
        notes: What the reader must know of how the program came here.
        cautions: Reasons why it may be another program than the one that runs.
        loads: What tasks take of the GPU, for the tracks.
        sources: The origin of each kind of figure.
    """
    timeline, step = record(program, prices, contention)
    memory, curves = None, None
    if program.module is not None:
        memory, curves = memory_over_step(program.module, step)
    collectives = _collectives(program, timeline, cluster)
    over_wan = wan_seconds(timeline)
    return Report(
        program=name or program.name,
        description=description,
        cluster=cluster.name,
        devices=program.devices,
        **dataclasses.asdict(timeline.totals.parts()),
        wan_seconds=over_wan,
        peak_memory_bytes=peak_memory_bytes,
        memory_bytes=cluster.gpu.memory_bytes,
        pricing=pricing,
        collectives=collectives,
        collective_kinds=_collective_kinds(timeline),
        kernel_kinds=_kernel_kinds(timeline),
        notes=(
            *notes,
            *between_regions(over_wan, timeline.totals.compute_seconds, cluster),
            *program_notes(program, timeline, cluster),
        ),
        cautions=tuple(cautions),
        unknown_kernels=program.called_kernels("custom"),
        versions=dict(versions or {}),
        measured=measured,
        cutting=advise(
            program, timeline, FormPrices(prices, contention, copy_engines=True)
        ),
        step_interval=intervals.step if intervals else None,
        exposed_interval=intervals.exposed if intervals else None,
        contention_interval=intervals.contention if intervals else None,
        sizes=_sizes(collectives),
        links=_links(collectives),
        memory=memory,
        sources=tuple(sources),
        tracks=tracks_of(step, timeline.prices, loads, program.module, curves),
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
    shares = _slowed_shares(timeline)
    slack = independent_seconds([c for c, _ in ranked[:_LOOKED_UP]], alone)
    return tuple(
        _collective(
            collective,
            times,
            timeline.prices[collective],
            Surroundings(collective in synchronous, slack.get(collective)),
            cluster,
            beside=_beside(times, shares, program.module),
        )
        for collective, times in ranked
    )


def _collective(
    collective: Collective,
    times: TaskTime,
    price: Price,
    surroundings: Surroundings,
    cluster: Cluster,
    beside: tuple[Beside, ...],
) -> CollectiveReport:
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
        hidden_by=beside,
        slowed_seconds=sum(one.slowed_seconds for one in beside),
        independent_seconds=surroundings.independent_seconds,
        verdict=verdict(collective, times, price, surroundings, beside),
        why=cause(collective, times, price, surroundings),
        op_name=collective.op_name,
        source=collective.source,
        library=collective.library,
    )


def _slowed_shares(timeline: Timeline) -> dict[Kernel, float]:
    """The part of a kernel's time beside collectives that it is slower for them."""
    besides: defaultdict[Kernel, float] = defaultdict(float)
    for times in timeline.tasks.values():
        for kernel, seconds in times.beside.items():
            besides[kernel] += seconds
    return {
        kernel: min(1.0, max(0.0, timeline.tasks[kernel].contention_seconds) / seconds)
        for kernel, seconds in besides.items()
        if seconds
    }


def _beside(
    times: TaskTime, slowed: Mapping[Kernel, float], module: Module | None
) -> tuple[Beside, ...]:
    found: defaultdict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for kernel, seconds in times.beside.items():
        sums = found[kernel.work.kind, place_of(kernel.instruction, module)]
        sums[0] += seconds
        sums[1] += seconds * slowed.get(kernel, 0.0)
    ranked = sorted(found.items(), key=lambda item: -item[1][0])
    return tuple(
        Beside(what, seconds, place, slower)
        for (what, place), (seconds, slower) in ranked
    )


def _sizes(collectives: Iterable[CollectiveReport]) -> tuple[SizeBand, ...]:
    bands: defaultdict[tuple[str, int], list[CollectiveReport]] = defaultdict(list)
    for one in collectives:
        bands[one.kind, max(0, one.bytes.bit_length() - 1) // 2].append(one)
    return tuple(
        SizeBand(
            *(kind, 4**power, 4 ** (power + 1), len(members)),
            executions=sum(one.executions for one in members),
            bytes=sum(one.bytes * one.executions for one in members),
            seconds=sum(one.seconds for one in members),
            exposed_seconds=sum(one.exposed_seconds for one in members),
        )
        for (kind, power), members in sorted(bands.items())
    )


def _links(collectives: Iterable[CollectiveReport]) -> tuple[LinkUse, ...]:
    links: defaultdict[str, list[CollectiveReport]] = defaultdict(list)
    for one in collectives:
        links[one.bound].append(one)
    found = (
        LinkUse(
            link,
            len(members),
            executions=sum(one.executions for one in members),
            seconds=(seconds := sum(one.seconds for one in members)),
            bytes=sum(one.bytes * one.executions for one in members),
            use=sum(one.link_use * one.seconds for one in members) / (seconds or 1.0),
        )
        for link, members in links.items()
    )
    return tuple(sorted(found, key=lambda link: -link.seconds))


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
