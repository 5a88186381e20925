"""Stage `kernels`: how long kernels take alone, beside what the model says.

Small programs, most of them of one kernel, are compiled by jax for this GPU and run
under its profiler. What XLA made of them is read and priced, instruction by
instruction, as any training step is.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import jax

from gpu_stages.clusters import cluster_of
from gpu_stages.compiled import first_line
from gpu_stages.kernel_cases import cases, chain
from gpu_stages.kernel_fit import fit
from gpu_stages.kernel_report import Found, Timed, outcome
from gpu_stages.kernel_times import (
    Compiled,
    compile_case,
    measure_all,
    ready,
    seconds_of_a_launch,
)
from gpu_stages.profiling import WITHOUT_GRAPHS
from gpu_stages.records import measured_before
from gpu_stages.sm_clock import reading, sampled
from gpu_stages.stage import CannotRunError, Clock, Outcome, Request, Spread, say
from lagom_jax.cluster import Cluster
from lagom_jax.compile.starting import start_jax
from lagom_jax.cost.constants import load_constants
from lagom_jax.cost.model import CostModel
from lagom_jax.schedule.program import Kernel

# Of the stage's time; the rest is for making arguments.
_FOR_COMPILING, _FOR_MEASURING = 0.6, 0.2
# Both keep a GPU busy for longer than Python takes to launch them.
_SHORT, _LONG = 256, 1024
_DRY_SHORT, _DRY_LONG = 64, 320
_CHAIN_RUNS: Final = 40
# Kernels of less than this part of their program's time are there for others' sake.
_WORTH_A_ROW: Final = 0.2
# What all arguments together may take of the memory that jax has.
_MEMORY: Final = 0.5
_DRY_BYTES: Final = 1 << 30
_SAID_EVERY: Final = 20


def run(request: Request) -> Outcome:
    """Measures as many kernels as there is time for."""
    clock = Clock.of(request)
    start_jax()
    cluster = cluster_of(request.gpu)
    if request.dry:
        cluster = _like_a_processor(cluster)
    elif jax.default_backend() != "gpu":
        raise CannotRunError(
            f"jax runs on the {jax.default_backend()} here and not on the GPU: install "
            "jax[cuda13], or jax[cuda12] where the driver is older than 580"
        )
    found = _measure(request, clock, cluster)
    constants = load_constants(cluster)
    measurements = [one.measurement for one in found.kernels]
    choices, fitted = fit([*measurements, found.launch], cluster, constants)
    made = outcome(found, cluster, constants, choices, fitted)
    earlier = measured_before(cluster.gpu.name, "kernels")
    return dataclasses.replace(made, findings=[*earlier, *made.findings])


def _measure(request: Request, clock: Clock, cluster: Cluster) -> Found:
    rounds, runs = (2, 2) if request.dry else (8, 5)
    # A processor's compiler would make one kernel of them all.
    default = {"xla_disable_hlo_passes": "fusion"} if request.dry else {}
    lengths = (_DRY_SHORT, _DRY_LONG) if request.dry else (_SHORT, _LONG)
    short, long = map(chain, lengths)
    tiny = compile_case(short, "tiny", {**WITHOUT_GRAPHS, **default})
    tiny_long = compile_case(long, "tiny_long", {**WITHOUT_GRAPHS, **default})
    one_by_one = seconds_of_a_launch(tiny, tiny_long, rounds=rounds, runs=_CHAIN_RUNS)
    in_graphs = seconds_of_a_launch(
        compile_case(short, "graph", default),
        compile_case(long, "graph_long", default),
        rounds=rounds,
        runs=_CHAIN_RUNS,
    )
    programs, left_out = _compile_all(request, clock, cluster)
    reserve = _FOR_MEASURING * request.seconds
    running, failed = ready([tiny, *programs], clock, reserve)
    say(f"measuring {len(running)} programs in {rounds} rounds")
    with sampled(reading(dry=request.dry)) as megahertz:
        times = measure_all(
            running,
            CostModel.of(cluster),
            request.folder,
            clock,
            rounds=rounds,
            runs=runs,
        )
    of_tiny = times.seconds.get(tiny)
    if not of_tiny:
        raise CannotRunError(
            "no profile names an instruction of 'case_tiny', the program that every "
            "other is compared with; tell the maintainers, with the versions of jax"
        )
    alone = statistics.median(s for seconds in of_tiny.values() for s in seconds)
    # A profile has no gaps between kernels, a step does.
    gap = max(0.0, statistics.median(in_graphs) - alone)
    return Found(
        kernels=[
            timed
            for program in programs
            for timed in _worth_a_row(program, times.seconds.get(program, {}), gap)
        ],
        tiny=next(iter(of_tiny)),
        in_graphs=Spread.of([1e6 * s for s in in_graphs]),
        one_by_one=Spread.of([1e6 * s for s in one_by_one]),
        alone_us=1e6 * alone,
        gap_us=1e6 * gap,
        nameless_share=times.nameless_share,
        clock=Spread.of(megahertz) if megahertz else None,
        left_out=[*left_out, *failed, *_fewer(times.rounds, rounds)],
    )


def _compile_all(
    request: Request, clock: Clock, cluster: Cluster
) -> tuple[list[Compiled], list[str]]:
    """Programs in the order of importance, and why some are missing or not as meant."""
    room = _DRY_BYTES
    if not request.dry:
        room = _MEMORY * jax.devices()[0].memory_stats()["bytes_limit"]
    wanted = list(cases(cluster.gpu, dry=request.dry))
    programs: list[Compiled] = []
    why: defaultdict[str, list[str]] = defaultdict(list)
    for number, case in enumerate(wanted):
        if number % _SAID_EVERY == 0:
            say(f"compiling {len(wanted)} programs, {number} are done")
        if clock.left() < (1 - _FOR_COMPILING) * request.seconds:
            why["no time was left to compile"].append(case.what)
            continue
        if case.nbytes > room:
            why["no memory was left for"].append(case.what)
            continue
        try:
            program = compile_case(case, str(number))
        except Exception as error:
            why[f"XLA does not compile ({first_line(error)})"].append(case.what)
            continue
        room -= case.nbytes
        programs.append(program)
        if program.instead_because:
            why[f"{program.instead_because}; another one was measured for"].append(
                case.what
            )
    return programs, [f"{reason}: {'; '.join(whats)}" for reason, whats in why.items()]


def _fewer(rounds: int, wanted: int) -> Iterator[str]:
    if rounds < wanted:
        yield f"{wanted - rounds} of {wanted} rounds: no time was left"


def _worth_a_row(
    program: Compiled, seconds: Mapping[Kernel, Sequence[float]], gap: float
) -> Iterator[Timed]:
    medians = {kernel: statistics.median(s) for kernel, s in seconds.items()}
    total = sum(medians.values())
    for kernel, median in medians.items():
        if median >= _WORTH_A_ROW * total:
            spread = Spread.of([1e6 * (s + gap) for s in seconds[kernel]])
            yield Timed(program.case.what, kernel, spread)


def _like_a_processor(cluster: Cluster) -> Cluster:
    """The stand-in for the GPU of a dry run: as slow as what runs there."""
    gpu = dataclasses.replace(
        cluster.gpu,
        l2_bytes=1 << 17,
        memory_bytes_per_s=10**10,
        dense_flops_per_s=dict.fromkeys(cluster.gpu.dense_flops_per_s, 10**11),
        vector_flops_per_s=dict.fromkeys(cluster.gpu.vector_flops_per_s, 10**10),
    )
    system = dataclasses.replace(cluster.system, gpu=gpu)
    return dataclasses.replace(cluster, system=system)
