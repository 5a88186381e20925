"""Fits what kernels that are no matmuls reach to the measured kernels of a step.

    python scripts/fit_kernels.py FOLDER --cluster p4d:1x4

FOLDER is as for `validate_step.py`. Of kernels of 15 us and more that no collective
covered, those of one shape are one observation. Two constants are fitted to fusions and
reductions along rows: the share of the memory's rate and the issue slots of an
operation; one to reductions by columns. Then each shape is left out of the fit in turn
and asked for. Prints the constants and the errors; `estimated/kernels.json` has what
was taken over.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import statistics
from collections import defaultdict
from pathlib import Path

import numpy as np

from lagom_jax.cluster import Cluster
from lagom_jax.cost.compute import kernel_price
from lagom_jax.cost.constants import Constants, load_constants
from lagom_jax.hlo import read_module
from lagom_jax.hlo.files import read_bytes
from lagom_jax.hlo.work import Work
from lagom_jax.program.build import build_program
from lagom_jax.program.program import Kernel

LONG_US = 15
KINDS = ("fusion", "reduction")
SHARES = np.arange(0.5, 1.0, 0.005)
SLOTS = np.arange(1.0, 6.0, 0.1)
NEAR = 0.2


def observations(folder: Path) -> dict[Work, tuple[float, float]]:
    """Median microseconds of each shape of kernel, and what all of it took."""
    program = build_program(read_module(read_bytes(folder / "module.hlo.pb.gz").module))
    works = {t.name: t.work for t, _, _ in program.tasks() if isinstance(t, Kernel)}
    found: defaultdict[Work, list[float]] = defaultdict(list)
    with (folder / "kernels.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            work, microseconds = works.get(row["instruction"]), float(row["median_us"])
            alone = float(row["covered_by_collective"]) < 0.02
            if work and work.kind in KINDS and alone and microseconds >= LONG_US:
                found[work].append(microseconds)
    return {work: (statistics.median(us), sum(us)) for work, us in found.items()}


def logs(
    works: list[Work], measured: np.ndarray, cluster: Cluster, constants: Constants
) -> np.ndarray:
    """Logs of predicted over measured time."""
    found: list[float] = []
    for work in works:
        price = kernel_price(work, cluster, constants)
        found.append(1e6 * (price.seconds - price.gap_seconds))
    return np.log(np.array(found) / measured)


def fit(
    name: str,
    seen: dict[Work, tuple[float, float]],
    cluster: Cluster,
    constants: Constants,
    kinds: tuple[str, ...],
    slots: np.ndarray,
) -> Constants:
    """Tries all pairs of constants; an error beyond 50 % counts as 50 %."""
    works = list(seen)
    measured, totals = np.array(list(seen.values())).T
    tried: list[tuple[Constants, float, float]] = []
    for share in SHARES:
        for slot in slots:
            shares = {**constants.kernels.memory_shares, **dict.fromkeys(kinds, share)}
            kernels = dataclasses.replace(
                constants.kernels, memory_shares=shares, issued_per_operation=slot
            )
            tried.append((dataclasses.replace(constants, kernels=kernels), share, slot))
    errors = np.abs(
        np.array([logs(works, measured, cluster, each) for each, _, _ in tried])
    )
    losses = np.minimum(errors, 0.5) * totals
    whole = losses.sum(axis=1)
    best = int(whole.argmin())
    left_out = (whole[:, None] - losses).argmin(axis=0)
    kept_out = errors[left_out, np.arange(len(works))]
    near = totals[kept_out < NEAR].sum() / totals.sum()
    print(
        f"{name}, {len(works)} shapes: share {tried[best][1]:.3f}, issue slots "
        f"{tried[best][2]:.1f}; fitted: median {np.median(errors[best]):.1%}; each "
        f"left out: median {np.median(kept_out):.1%}, {near:.0%} of the time within "
        f"{NEAR:.0%}"
    )
    return tried[best][0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cluster", required=True)
    arguments = parser.parse_args()
    cluster = Cluster.parse(arguments.cluster)
    seen = observations(arguments.folder)
    along = {w: t for w, t in seen.items() if not w.by_columns and not w.strided}
    columns = {w: t for w, t in seen.items() if w.by_columns}
    constants = load_constants(cluster)
    found = fit("along rows", along, cluster, constants, KINDS, SLOTS)
    slots = np.array([found.kernels.issued_per_operation])
    fit("by columns", columns, cluster, found, ("reduction by columns",), slots)


if __name__ == "__main__":
    main()
