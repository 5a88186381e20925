"""Remarks that a reader of a report must know to trust its figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lagom_jax.cluster import Cluster
from lagom_jax.cost.timeline import Timeline
from lagom_jax.hlo.custom_calls import HOST_CALLBACKS
from lagom_jax.hlo.provenance import compiled_for_gpu
from lagom_jax.hlo.stated_kernels import stated_for
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
    if program.module is not None:
        yield from _unheard(program)
    callbacks = [k for k in timeline.kernels() if k.work.target in HOST_CALLBACKS]
    if any(k.work.stated_seconds is None for k in callbacks):
        yield (
            "Python is called from the GPU: its own time is not known and left out, "
            "only the way of the data to the host and back is counted"
        )


def unknown_in_words(names: Sequence[str]) -> str:
    """A remark on kernels whose time is left out.

    Example:
        >>> unknown_in_words(["my_kernel"])
        'without the time of 1 kernel that nothing is known of (my_kernel), but for
        the way of its operands and results: state it with --kernels'
    """
    shown = ", ".join(names[:4]) + (", ..." if names[4:] else "")
    whose = "their" if names[1:] else "its"
    return (
        f"without the time of {counted(len(names), 'kernel')} that nothing is known "
        f"of ({shown}), but for the way of {whose} operands and results: state it "
        "with --kernels"
    )


def _unheard(program: Program) -> Iterable[str]:
    """A word on statements about kernels that the program lacks."""
    assert program.module is not None
    targets = program.called_kernels()
    for one in program.module.stated:
        if not any(stated_for([one], target) for target in targets):
            yield (
                f"--kernels states {one.name}, and the program calls no such kernel; "
                f"it calls {', '.join(targets[:6]) or 'none of a library'}"
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
