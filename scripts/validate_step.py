"""Puts a program's measured kernels beside what the model says of each.

    python scripts/validate_step.py FOLDER --cluster p4d:1x4 --nccl 2.21.5 \
        --step-ms 127.3

FOLDER has `module.hlo.pb.gz`, the scheduled module that ran; `kernels.csv`, with the
columns instruction, median_us and covered_by_collective (a part from 0 to 1); and
`collectives.csv`, with op and us_min_over_ranks, a collective without its waits. Prints
the step, kernels by what they are, the instructions that are furthest off, every
collective, what is lost beside collectives, and of each large collective what it would
take if its waits for kernels' bytes were as strong as those of the others say. Nothing
else is fitted to them here.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lagom_jax.cluster import Cluster, Gpu
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.replay import replay
from lagom_jax.hlo import read_module
from lagom_jax.hlo.collective import Collective
from lagom_jax.hlo.files import read_bytes
from lagom_jax.hlo.module import Module
from lagom_jax.program.build import build_program
from lagom_jax.program.program import Kernel

NEAR = 0.2
LONG_US = 20
WORST = 15
LARGE = 1 << 20


@dataclass(frozen=True)
class Row:
    """One instruction's execution: microseconds, and times a step."""

    name: str
    kind: str
    measured: float
    predicted: float
    times: float


@dataclass(frozen=True)
class Beside:
    """One collective's execution beside kernels: microseconds."""

    name: str
    measured: float
    alone: float
    """Predicted, were there no kernels."""
    predicted: float

    @property
    def waits(self) -> float:
        """Predicted, for kernels' bytes."""
        return self.predicted - self.alone


def strength_of(collectives: Iterable[Beside]) -> float:
    """The part of the predicted waits that explains most of the measured times.

    Each collective counts by shares of its time alone.
    """
    pairs = [(c.waits / c.alone, c.measured / c.alone - 1) for c in collectives]
    return sum(x * y for x, y in pairs) / sum(x * x for x, _ in pairs)


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def kernel_rows(
    kernels: dict[str, Kernel], times: dict[str, float], model: CostModel, path: Path
) -> tuple[list[Row], list[dict[str, str]]]:
    """What is in both, and what only the measurements have."""
    found: list[Row] = []
    unknown: list[dict[str, str]] = []
    for cells in table(path):
        kernel = kernels.get(cells["instruction"])
        if kernel is None:
            unknown.append(cells)
            continue
        price = model.kernel(kernel)
        predicted = (price.seconds - price.gap_seconds) * 1e6
        found.append(
            Row(
                kernel.name,
                kernel.work.kind,
                float(cells["median_us"]),
                predicted,
                times[kernel.name],
            )
        )
    return found, unknown


def names_of(task: Collective, module: Module) -> Iterator[str]:
    """Its name, and of one in a computation of its own the name that it has there."""
    yield task.name
    if task.instruction is not None:
        for computation in module.called(task.instruction):
            yield from (one.name for one in computation.instructions.values())


def memory_shares(rows: list[Row], kernels: dict[str, Kernel], gpu: Gpu) -> None:
    """What kernels that are no matmuls reach of the memory's rate, beyond the start."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row.kind != "matmul" and row.measured > LONG_US:
            nbytes = kernels[row.name].work.hbm_bytes
            found[row.kind].append(1e6 * nbytes / row.measured / gpu.memory_bytes_per_s)
    print(f"\n| longer than {LONG_US} us | instructions | share of memory's rate |")
    print("|---|---:|---|")
    for kind, shares in sorted(found.items()):
        tenth = len(shares) // 10
        shares.sort()
        print(
            f"| {kind} | {len(shares)} | median {statistics.median(shares):.2f}, "
            f"{shares[tenth]:.2f} to {shares[-1 - tenth]:.2f} |"
        )


def by_kind(rows: list[Row]) -> None:
    totals: defaultdict[str, list[float]] = defaultdict(lambda: [0.0] * 4)
    for row in rows:
        total = totals[row.kind]
        total[0] += row.times
        total[1] += row.measured * row.times
        total[2] += row.predicted * row.times
        near = abs(row.predicted / row.measured - 1) <= NEAR
        total[3] += row.measured * row.times * near
    print("| kernels | executions | measured, ms | predicted, ms | within 20 % |")
    print("|---|---:|---:|---:|---:|")
    everything = [sum(values) for values in zip(*totals.values(), strict=True)]
    for kind, total in [*sorted(totals.items()), ("all", everything)]:
        count, measured, predicted, near = total
        print(
            f"| {kind} | {count:.0f} | {measured / 1e3:.2f} | {predicted / 1e3:.2f} "
            f"| {near / measured:.0%} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--nccl", default="")
    parser.add_argument("--step-ms", type=float, default=0.0)
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    module = read_module(read_bytes(folder / "module.hlo.pb.gz").module)
    program, cluster = build_program(module), Cluster.parse(arguments.cluster)
    model = CostModel.of(cluster, arguments.nccl)
    timeline = replay(program, model, model.contention())
    totals = timeline.totals
    step = totals.step_seconds * 1e3
    print(f"step: predicted {step:.1f} ms", end="")
    if arguments.step_ms:
        off = step / arguments.step_ms - 1
        print(f", measured {arguments.step_ms:.1f} ms ({off:+.1%})", end="")
    alone = totals.compute_seconds - totals.contention_seconds
    print(
        f"\n    kernels alone {1e3 * alone:.1f} ms, lost beside collectives "
        f"{1e3 * totals.contention_seconds:.2f} ms, exposed "
        f"{1e3 * totals.exposed_seconds:.1f} ms, waiting "
        f"{1e3 * totals.waiting_seconds:.1f} ms\n"
    )
    kernels = {t.name: t for t, _, _ in program.tasks() if isinstance(t, Kernel)}
    times: defaultdict[str, float] = defaultdict(float)
    for task, count, _ in program.tasks():
        times[task.name] += count
    rows, unknown = kernel_rows(kernels, times, model, folder / "kernels.csv")
    by_kind(rows)
    memory_shares(rows, kernels, cluster.gpu)
    lost = sum(float(cells["median_us"]) for cells in unknown) / 1e3
    print(f"\n{len(unknown)} measured instructions the program has not: {lost:.2f} ms")
    missing = kernels.keys() - {row.name for row in rows}
    priced = sum(model.kernel(kernels[name]).seconds for name in missing) * 1e3
    print(f"{len(missing)} kernels that were not measured: priced {priced:.2f} ms\n")
    print("| furthest off | kind | times | measured, us | predicted, us |")
    print("|---|---|---:|---:|---:|")
    rows.sort(key=lambda r: -abs(r.predicted - r.measured) * r.times)
    for row in rows[:WORST]:
        print(
            f"| {row.name} | {row.kind} | {row.times:.0f} | {row.measured:.1f} "
            f"| {row.predicted:.1f} |"
        )
    sites = {
        name: task
        for task, _, _ in program.tasks()
        if isinstance(task, Collective)
        for name in names_of(task, module)
    }
    print("\n| collective | arrays | bytes | measured, us | predicted, us | off |")
    print("|---|---:|---:|---:|---:|---:|")
    beside: list[Beside] = []
    for cells in table(folder / "collectives.csv"):
        site = sites.get(cells["op"])
        if site is None:
            print(f"| {cells['op']} | not in the program |")
            continue
        took = timeline.tasks[site]
        predicted = took.seconds / took.executions * 1e6
        measured = float(cells["us_min_over_ranks"])
        print(
            f"| {site.name} | {site.operand_count} | {site.bytes} | {measured:.1f} "
            f"| {predicted:.1f} | {predicted / measured - 1:+.0%} |"
        )
        if site.bytes >= LARGE:
            alone = model.collective(site).seconds * 1e6
            beside.append(Beside(site.name, measured, alone, predicted))
    print("\n| large collective | strength by the others | predicted, us | off |")
    print("|---|---:|---:|---:|")
    for one in beside:
        strength = strength_of(other for other in beside if other is not one)
        predicted = one.alone + strength * one.waits
        print(
            f"| {one.name} | {strength:.2f} | {predicted:.1f} "
            f"| {predicted / one.measured - 1:+.0%} |"
        )


if __name__ == "__main__":
    main()
