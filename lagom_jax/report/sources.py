"""The origin of each kind of figure in a report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lagom_jax.cluster import Cluster
from lagom_jax.cost.constants import Constants
from lagom_jax.cost.measured import measured
from lagom_jax.cost.span import span_of
from lagom_jax.hlo.work import KINDS
from lagom_jax.program.program import Kernel, Program
from lagom_jax.report.figures import FigureSource, Origin

_MATMULS: Final = frozenset({"matmul", "attention", "convolution"})


def figure_sources(
    program: Program,
    cluster: Cluster,
    constants: Constants,
    *,
    profiled: bool = False,
    calibrated: bool = False,
    compiled: bool = False,
) -> tuple[FigureSource, ...]:
    """The origin of each kind of figure in a report of a program.

    Args:
        program: The program.
        cluster: What it runs on.
        constants: Those of the model.
        profiled: Whether times of a profile go before the model's.
        calibrated: Whether the user's own measurements correct the model.
        compiled: Whether the compiler said how much memory the step takes.
    """
    found = list(_prices(program, cluster, constants))
    if calibrated:
        found.append(
            FigureSource(
                "corrections of single times",
                "measured",
                "your own calibration, as far as it goes",
            )
        )
    if profiled:
        found.append(
            FigureSource(
                "times of tasks in the profile",
                "measured",
                "your own profile; contention is in them",
            )
        )
    found.append(
        FigureSource(
            "the step, what is hidden and exposed",
            "predicted",
            "a replay of the compiled schedule with these prices",
        )
    )
    found.append(
        FigureSource("peak memory", "compiler", "XLA's own count of its buffers")
        if compiled
        else FigureSource("peak memory", "estimated", "not known of a dump")
    )
    found.append(
        FigureSource(
            "memory over the step, what holds it",
            "estimated",
            "from the first and last use of each array in the schedule",
        )
    )
    found.append(
        FigureSource(
            "peak rates of the GPU and its links",
            "data sheet",
            "; ".join(dict.fromkeys(cluster.gpu.sources.values())),
        )
    )
    return tuple(found)


def _prices(
    program: Program, cluster: Cluster, constants: Constants
) -> Iterator[FigureSource]:
    kinds = {
        task.work.kind for task, _, _ in program.tasks() if isinstance(task, Kernel)
    }
    matmuls = constants.kernels.matmul("bf16")
    if kinds & _MATMULS:
        yield FigureSource(
            "times of matmuls",
            "calibrated" if matmuls.calibrated else "estimated",
            _plain(matmuls.source),
        )
    if kinds & (KINDS - _MATMULS):
        known = measured(cluster.gpu.name, "kernels")
        yield FigureSource(
            "times of other kernels",
            "calibrated" if known else "estimated",
            "measured on this GPU" if known else "bytes over bandwidth, and a start",
        )
    reach = {
        span_of(one.groups, cluster).domains > 1 for one, _, _ in program.collectives()
    }
    if reach:
        surfaces = constants.surfaces
        yield FigureSource(
            "times of collectives in a domain",
            "calibrated" if surfaces.calibrated else "estimated",
            _plain(surfaces.source),
        )
    if True in reach:
        yield FigureSource(
            "times of collectives between domains",
            "estimated",
            "the network's nominal rate, and NCCL's structure",
        )
    if reach:
        known = measured(cluster.gpu.name, "sharing")
        origin: Origin = "calibrated" if known else "estimated"
        yield FigureSource(
            "contention of kernels and collectives",
            origin,
            "measured on this GPU" if known else "few published ratios on other GPUs",
        )


def _plain(source: str) -> str:
    return source.removeprefix("estimated: ").removeprefix("calibrated: ")
