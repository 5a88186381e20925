"""Share of the measurements kept out that lie within the intervals stated for them.

    python scripts/score_coverage.py [--step FOLDER] [--gpu NAME] [--json OUT]

Every interval is that of an ensemble (`lagom_jax/cost/ensemble.py`) around constants
that were fitted without the rows in question, with the spread that the other rows show.
Four kinds of rows: matmuls, a fifth of the shapes at a time; NCCL alone, every seventh
row; two hosts, by the constants of any network, fitted to the other networks; and with
`--step` the kernels and the time of a whole measured step, to which nothing was fitted.
`scripts/validate_step.py` says what that folder has in it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

import collective_surfaces
import fit_collectives
import fit_matmuls
import fit_networks
import numpy as np
import validate_step

from lagom_jax.cluster import Cluster
from lagom_jax.cost.collective import CollectiveTerms
from lagom_jax.cost.constants import Constants, elsewhere, load_constants
from lagom_jax.cost.drawn import drawn
from lagom_jax.cost.draws import Draws
from lagom_jax.cost.ensemble import MEMBERS, Ensemble
from lagom_jax.cost.matmul import SHORT_SECONDS
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.prices import Price
from lagom_jax.cost.replay import replay
from lagom_jax.cost.span import Span
from lagom_jax.cost.spread import TENTH_BEYOND, Spread
from lagom_jax.cost.surface import Surface
from lagom_jax.hlo import read_module
from lagom_jax.hlo.collective import Collective
from lagom_jax.hlo.files import read_bytes
from lagom_jax.plan.interval import OUTSIDE
from lagom_jax.program.build import build_program
from lagom_jax.program.program import Kernel

NINE_IN_TEN = 0.9
STEP_SECONDS = 0.1273
"""Of the step that `--step` names, by those who measured it."""


@dataclasses.dataclass(frozen=True)
class Covered:
    """Measurements of one kind, and how many of them the intervals have."""

    what: str
    rows: int
    inside: int
    width: float
    """Of the intervals, over what is expected: the median."""

    @property
    def share(self) -> float:
        """Of the rows, those within their intervals."""
        return self.inside / self.rows


def covered(what: str, measured: np.ndarray, by_model: np.ndarray) -> Covered:
    """Counts the measured values between the ends of what models say of them.

    Args:
        what: The kind of measurement.
        measured: One for each row.
        by_model: A row for each, a column for each model.
    """
    outside = by_model.shape[1] // OUTSIDE
    ordered = np.sort(by_model, axis=1)
    low, high = ordered[:, outside], ordered[:, -1 - outside]
    inside = (low <= measured) & (measured <= high)
    width = float(np.median((high - low) / np.median(by_model, axis=1)))
    return Covered(what, len(measured), int(inside.sum()), width)


def joined(what: str, parts: Iterable[tuple[np.ndarray, np.ndarray]]) -> Covered:
    measured, by_model = zip(*parts, strict=True)
    return covered(what, np.concatenate(measured), np.concatenate(by_model))


def spread_without(errors: np.ndarray, part: np.ndarray, turn: int) -> float:
    """Deviation that nine in ten rows of the other turns stay below."""
    others = np.abs(errors[part != turn])
    return float(np.quantile(others, NINE_IN_TEN)) / TENTH_BEYOND if len(others) else 0


def matmuls(gpus: Collection[str]) -> Iterator[Covered]:
    everything, _ = fit_matmuls.all_rows()
    for rows in everything:
        if rows.rate != "bf16" or rows.gpu.name not in gpus:
            continue
        name, part = next(fit_matmuls.kept_out(rows))
        assert name == "shapes"
        long = np.exp(rows.log_seconds) >= SHORT_SECONDS
        turns = [int(turn) for turn in np.unique(part)]
        fits = {turn: fit_matmuls.fit(rows.where(part != turn)) for turn in turns}
        errors = np.zeros(len(rows))
        for turn in turns:
            there = rows.where(part == turn)
            found = fit_matmuls.times(there, fits[turn])
            errors[part == turn] = np.log(found) - there.log_seconds
        for length, chosen in (("20 us and more", long), ("below 20 us", ~long)):
            parts: list[tuple[np.ndarray, np.ndarray]] = []
            for turn in turns:
                there = rows.where((part == turn) & chosen)
                if not len(there):
                    continue
                spread = Spread(
                    spread_without(errors[long], part[long], turn),
                    spread_without(errors[~long], part[~long], turn),
                )
                of = dataclasses.replace(fits[turn], spread=spread)
                known = load_constants(Cluster.parse(cluster_of(rows.gpu.name)))
                kernels = dataclasses.replace(known.kernels, matmuls={"bf16": of})
                members = members_of(dataclasses.replace(known, kernels=kernels))
                by_model = np.stack(
                    [
                        fit_matmuls.times(there, one.kernels.matmul("bf16"))
                        for one in members
                    ],
                    axis=1,
                )
                parts.append((np.exp(there.log_seconds), by_model))
            if parts:
                yield joined(f"matmuls, {rows.gpu.name}, {length}", parts)


def cluster_of(gpu: str) -> str:
    return next(c for n, c in fit_collectives.MEASURED.values() if n == gpu)


def members_of(constants: Constants) -> tuple[Constants, ...]:
    gpu = Cluster.parse(cluster_of(constants.gpu)).gpu
    return drawn(constants, gpu, Draws(MEMBERS))


TURNS = 7


def collectives(gpus: Collection[str]) -> Iterator[Covered]:
    for measured, (name, spelled) in fit_collectives.MEASURED.items():
        if name not in gpus:
            continue
        cluster = Cluster.parse(spelled)
        found: dict[bool, list[tuple[np.ndarray, np.ndarray]]] = defaultdict(list)
        for kind, rows in collective_surfaces.read(measured, cluster).items():
            alone = rows[(rows.launched == 0) & (rows.own > 0)]
            if len(alone) >= TURNS:
                for large, pair in collectives_of(kind, alone, cluster):
                    found[large].append(pair)
        for large, words in ((True, "1 MiB and more"), (False, "below 1 MiB")):
            if found[large]:
                yield joined(f"NCCL alone, {name}, {words}", found[large])


def collectives_of(
    kind: str, rows: collective_surfaces.Rows, cluster: Cluster
) -> Iterator[tuple[bool, tuple[np.ndarray, np.ndarray]]]:
    how = collective_surfaces.smoothness(kind, cluster)
    part = np.arange(len(rows)) % TURNS
    fits = {
        turn: collective_surfaces.fit(kind, rows[part != turn], cluster, how)[0]
        for turn in range(TURNS)
    }
    errors = np.zeros(len(rows))
    for turn, surface in fits.items():
        there = rows[part == turn]
        times = collective_surfaces.surface_times(surface, there, cluster)
        errors[part == turn] = np.log(times / there.microseconds)
    large = rows.nbytes >= collective_surfaces.LARGE
    for turn, surface in fits.items():
        spread = Spread(
            spread_without(errors[large], part[large], turn),
            spread_without(errors[~large], part[~large], turn),
        )
        members = surfaces_drawn(dataclasses.replace(surface, spread=spread), cluster)
        for which in (True, False):
            there = rows[(part == turn) & (large == which)]
            if len(there):
                by_model = np.stack(
                    [
                        collective_surfaces.surface_times(one, there, cluster)
                        for one in members
                    ],
                    axis=1,
                )
                yield which, (there.microseconds, by_model)


def surfaces_drawn(surface: Surface, cluster: Cluster) -> list[Surface]:
    known = load_constants(cluster)
    surfaces = dataclasses.replace(known.surfaces, by_kind={surface.kind: surface})
    constants = dataclasses.replace(known, surfaces=surfaces)
    members = drawn(constants, cluster.gpu, Draws(MEMBERS))
    return [one.surfaces.by_kind[surface.kind] for one in members]


def networks() -> Covered:
    rows = fit_networks.read()
    names = sorted({row.system for row in rows})
    left_out = {
        name: fit_networks.fit([row for row in rows if row.system != name])
        for name in names
    }
    errors = {
        name: fit_networks.errors([r for r in rows if r.system == name], point)
        for name, point in left_out.items()
    }
    parts: list[tuple[np.ndarray, np.ndarray]] = []
    for name, point in left_out.items():
        cluster = Cluster.parse(f"{name}:2x8")
        others = [found for one, found in errors.items() if one != name]
        off = np.concatenate(others)
        network = elsewhere(
            fit_networks.constants_of(point), cluster.between.bytes_per_s
        )
        spread = float(np.quantile(np.abs(off), NINE_IN_TEN)) / TENTH_BEYOND
        spread *= fit_networks.unsure(others)
        known = dataclasses.replace(
            load_constants(cluster),
            network=dataclasses.replace(network, spread=spread),
        )
        members = drawn(known, cluster.gpu, Draws(MEMBERS))
        own = [row for row in rows if row.system == name]
        by_model = [[seconds_over(row, cluster, one) for one in members] for row in own]
        measured = [row.microseconds * 1e-6 for row in own]
        parts.append((np.array(measured), np.array(by_model)))
    return joined("two hosts, of a network that was left out", parts)


def seconds_over(
    row: fit_networks.Row, cluster: Cluster, constants: Constants
) -> float:
    span = Span(16, 2, 8)
    terms = CollectiveTerms.of(row.kind, row.nbytes, span, cluster, constants)
    return terms.price().seconds


def step(folder: Path, cluster: Cluster, nccl: str) -> Iterator[Covered]:
    module = read_module(read_bytes(folder / "module.hlo.pb.gz").module)
    program, models = build_program(module), Ensemble.of(cluster, nccl)
    tasks = {task.name: task for task, _, _ in program.tasks()}

    def by_model(figure: Callable[[CostModel], float]) -> list[float]:
        return [figure(model) for model in models.members]

    kernels: dict[str, list[tuple[float, list[float]]]] = defaultdict(list)
    for cells in validate_step.table(folder / "kernels.csv"):
        task = tasks.get(cells["instruction"])
        if isinstance(task, Kernel):
            kind = "matmuls" if task.work.kind == "matmul" else "other kernels"
            measured = float(cells["median_us"]) * 1e-6
            times = by_model(lambda model, task=task: in_profile(model.kernel(task)))
            kernels[kind].append((measured, times))
    timelines = [replay(program, one, one.contention()) for one in models.members]
    for cells in validate_step.table(folder / "collectives.csv"):
        task = tasks.get(cells["op"])
        if isinstance(task, Collective):
            measured = float(cells["us_min_over_ranks"]) * 1e-6
            # As long as they took beside kernels.
            took = [timeline.tasks[task] for timeline in timelines]
            times = [one.seconds / one.executions for one in took]
            kernels["collectives"].append((measured, times))
    for kind, pairs in kernels.items():
        measured, times = zip(*pairs, strict=True)
        yield covered(
            f"the A100 step, {kind}", np.array(measured), np.array(times, float)
        )
    steps = [timeline.step_seconds for timeline in timelines]
    yield covered(
        "the A100 step, whole", np.array([STEP_SECONDS]), np.array([steps], float)
    )


def in_profile(price: Price) -> float:
    """Seconds as a profile has them: without the gap before the next kernel."""
    return price.seconds - price.gap_seconds


def table(found: Iterable[Covered]) -> str:
    lines = [
        "| measurements kept out | rows | within their intervals | width |",
        "|---|---:|---:|---:|",
    ]
    lines += [
        f"| {one.what} | {one.rows} | {one.share:.0%} | {one.width:.0%} |"
        for one in found
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Coverage of intervals.")
    parser.add_argument("--step", type=Path, metavar="FOLDER")
    parser.add_argument(
        "--only", choices=("matmuls", "collectives", "networks", "step")
    )
    known = [name for name, _ in fit_collectives.MEASURED.values()]
    parser.add_argument("--gpu", action="append", choices=known)
    parser.add_argument("--json", type=Path, metavar="OUT")
    asked = parser.parse_args()
    gpus: list[str] = asked.gpu or known
    found: list[Covered] = []

    def keep(parts: Iterable[Covered]) -> None:
        for one in parts:
            found.append(one)
            print(
                f"{one.what:50} {one.rows:5} {one.share:6.1%} {one.width:6.1%}",
                flush=True,
            )
            if asked.json:
                rows = [dataclasses.asdict(row) for row in found]
                asked.json.write_text(json.dumps(rows, indent=1) + "\n")

    if asked.step and asked.only in (None, "step"):
        keep(step(asked.step, Cluster.parse("p4d:1x4"), "2.21.5"))
    if asked.only in (None, "networks"):
        keep([networks()])
    if asked.only in (None, "collectives"):
        keep(collectives(gpus))
    if asked.only in (None, "matmuls"):
        keep(matmuls(gpus))


if __name__ == "__main__":
    main()
