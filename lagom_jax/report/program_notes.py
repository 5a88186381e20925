"""Remarks that a reader of a report must know to trust its figures."""

from __future__ import annotations

from collections.abc import Iterable

from lagom_jax.cluster import Cluster
from lagom_jax.cost.timeline import Timeline
from lagom_jax.hlo.custom_calls import HOST_CALLBACKS
from lagom_jax.hlo.provenance import compiled_for_gpu
from lagom_jax.program.program import Program
from lagom_jax.units import counted, in_percent

_WORTH_A_WORD = 0.01


def program_notes(
    program: Program, timeline: Timeline, cluster: Cluster
) -> Iterable[str]:
    """Remarks on a program and its replay.

    Args:
        program: The step.
        timeline: Its replay.
        cluster: What it runs on.
    """
    return (*_of(program, timeline, cluster),)


def _of(program: Program, timeline: Timeline, cluster: Cluster) -> Iterable[str]:
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
    yield from _single_precision(timeline)
    custom = [k for k in timeline.kernels() if k.work.kind == "custom"]
    if custom:
        targets = sorted({k.work.target or k.name for k in custom})
        yield (
            f"{counted(len(custom), 'custom call')} of unknown work, priced by "
            "operands and results alone, which is the least that it can take: "
            f"{', '.join(targets[:4])}"
        )
    if any(k.work.target in HOST_CALLBACKS for k in timeline.kernels()):
        yield (
            "Python is called from the GPU: its own time is not known and left out, "
            "only the way of the data to the host and back is counted"
        )


def _single_precision(timeline: Timeline) -> Iterable[str]:
    """A word on products of f32, which XLA computes in TensorFloat-32."""
    seconds = sum(
        times.seconds
        for kernel, times in timeline.kernels().items()
        if any(product.lhs == "f32" for product in kernel.work.matmuls)
    )
    if seconds > _WORTH_A_WORD * timeline.totals.compute_seconds:
        yield (
            f"{in_percent(seconds, timeline.totals.compute_seconds)} of the "
            "computation is in matrix products of f32, priced as TensorFloat-32, which "
            "XLA takes for them unless jax_default_matmul_precision says otherwise"
        )


def _before_hopper(cluster: Cluster) -> bool:
    return int(cluster.gpu.compute_capability.partition(".")[0]) < 9
