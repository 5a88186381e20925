"""Published training runs against the closed form: `bench_mesh.py published`."""

from __future__ import annotations

import dataclasses
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from lagom_jax.cluster import Cluster
from lagom_jax.cost.ensemble import Ensemble
from lagom_jax.measurements.table import load_text, parse_table
from lagom_jax.mesh.candidates import Asks, candidates
from lagom_jax.mesh.choosing import choose
from lagom_jax.mesh.estimate import estimate
from lagom_jax.mesh.frameworks import framework_named
from lagom_jax.mesh.mesh_prices import MeshPrices
from lagom_jax.mesh.model_shape import published_shape
from lagom_jax.mesh.pictures import axes_words
from lagom_jax.mesh.published_runs import RUN_COLUMNS, predicted_run
from lagom_jax.mesh.rules_of_thumb import RULES, by_rule
from lagom_jax.mesh.sizes import MeshSizes, StepBatch

TIE = 1.03
"""Measured steps nearer than that are ties: single iterations."""


def rank_correlation(real: np.ndarray, said: np.ndarray, tie: float = 1.0) -> float:
    """Spearman's, of which real figures nearer than a factor are ties."""

    def ranks(values: np.ndarray, near: float) -> np.ndarray:
        below = values[None, :] < values[:, None] / near
        equal = ~below & ~(values[None, :] > values[:, None] * near)
        return below.sum(1) + equal.sum(1) / 2

    one, other = ranks(real, tie), ranks(said, 1.0)
    if one.std() == 0 or other.std() == 0:
        return float("nan")
    return float(np.corrcoef(one, other)[0, 1])


def published(path: Path) -> None:
    outcomes = parse_table(load_text(path), RUN_COLUMNS, path).each(predicted_run)
    done = [one for one in outcomes if one.result is not None]
    print(f"{len(done)} of {len(outcomes)} rows are given by their dimensions")
    _levels(done)
    _ranks(done)
    _memory(done)
    _among_best(done)
    _bigscience()


def _levels(done: list[Any]) -> None:
    print(
        "\n| framework | rows | level | left, median | p90 |\n"
        "| --- | --: | --: | --: | --: |"
    )
    by_name: defaultdict[str, list[float]] = defaultdict(list)
    for one in done:
        if one.cells["status"] == "ok" and one.cells["step_time_s"]:
            ratio = float(one.cells["step_time_s"]) / one.result.seconds
            by_name[one.result.run.framework.name].append(ratio)
    for name, ratios in by_name.items():
        level = framework_named(name).level * statistics.median(ratios)
        errors = np.abs(np.array(ratios) / statistics.median(ratios) - 1)
        print(
            f"| {name} | {len(ratios)} | {level:.3f} | {np.median(errors):.1%} "
            f"| {np.quantile(errors, 0.9):.1%} |"
        )


def _ranks(done: list[Any]) -> None:
    groups: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for one in done:
        cells = one.cells
        if cells.get("rank_group") and cells["status"] == "ok" and cells["step_time_s"]:
            pair = float(cells["step_time_s"]), one.result.seconds
            groups[cells["rank_group"]].append(pair)
    found: list[float] = []
    for pairs in groups.values():
        if len(pairs) > 2:
            rank = rank_correlation(*np.array(pairs).T, tie=TIE)
            if not np.isnan(rank):
                found.append(rank)
    print(
        f"\nrank correlation in {len(found)} groups of three and more: median "
        f"{np.median(found):.2f}, mean {np.mean(found):.2f}, lowest {min(found):.2f}; "
        f"nothing is fitted to them"
    )


def _memory(done: list[Any]) -> None:
    ran = [one for one in done if one.cells["status"] == "ok"]
    failed = [one for one in done if one.cells["status"] == "oom"]
    print(
        f"\nran and said to fit: {sum(one.result.fits for one in ran)} of {len(ran)}; "
        f"ran out of memory and said not to fit: "
        f"{sum(not one.result.fits for one in failed)} of {len(failed)}"
    )
    known = [
        one.result.memory_bytes / 1e9 / float(one.cells["peak_mem_gb"])
        for one in ran
        if one.cells["peak_mem_gb"]
    ]
    print(f"memory said over measured: {np.quantile(known, [0.1, 0.5, 0.9]).round(2)}")


def _among_best(done: list[Any]) -> None:
    """Published choices of Megatron-Bridge and MaxText among the best three."""
    print(
        "\n| published | mesh | place | its step over our best |\n"
        "| --- | --- | --: | --: |"
    )
    seen: set[tuple[str, ...]] = set()
    places: list[int] = []
    for one in done:
        cells, found = one.cells, one.result
        framework = found.run.framework
        key = tuple(cells[c] for c in ("model", "gpu", "num_gpus", "precision"))
        asked = framework.name in ("megatron-bridge", "maxtext")
        if not asked or key in seen or cells["status"] != "ok":
            continue
        seen.add(key)
        run = found.run
        asks = Asks(memory_fraction=1.0)
        options = candidates(run.shape, run.cluster, run.batch, framework, asks).found
        prices = MeshPrices(Ensemble.of(run.cluster, members=0).likeliest)
        best: dict[tuple[int, ...], float] = {}
        for sizes in options:
            cut = _cut(sizes)
            seconds = estimate(run.shape, sizes, run.batch, framework, prices).seconds
            best[cut] = min(seconds, best.get(cut, seconds))
        own = _cut(run.sizes)
        ordered = sorted(best, key=lambda cut: best[cut])
        if own not in best:
            print(f"| {' '.join(key)} | {axes_words(run.sizes)} | not a candidate | |")
            continue
        place = ordered.index(own) + 1
        places.append(place)
        print(
            f"| {' '.join(key)} | {axes_words(run.sizes)} | {place} of {len(ordered)} "
            f"| {best[own] / best[ordered[0]]:.2f} |"
        )
    inside = sum(place <= 3 for place in places)
    print(f"\namong the best three: {inside} of {len(places)}")


def _cut(sizes: MeshSizes) -> tuple[int, ...]:
    """A mesh without what a published row need not say."""
    return (sizes.tensor, sizes.pipeline, sizes.sequence, sizes.expert)


def _bigscience() -> None:
    """BLOOM's 176B on its cluster: what ran, what the rule takes, what we do."""
    cluster = Cluster.parse("a100:48x8")
    between = dataclasses.replace(cluster.between, bytes_per_s=4 * 12.5e9 / 8)
    system = dataclasses.replace(cluster.system, between=between)
    cluster = dataclasses.replace(cluster, system=system)
    shape, batch = published_shape("bloom-176b"), StepBatch(2048, 2048)
    framework = framework_named("megatron-deepspeed")
    prices = MeshPrices(Ensemble.of(cluster, members=0).likeliest)
    asks = Asks(remats=("full",))
    ours = choose(
        *(shape,),
        cluster=cluster,
        tokens=batch.tokens,
        sequence=batch.length,
        framework=framework,
        asks=asks,
    ).best.sizes
    ran = MeshSizes(data=8, tensor=4, pipeline=12, micro_batch=2)
    rule = by_rule(RULES[0], shape, cluster, batch, framework, asks)
    print("\nBLOOM 176B on 384 A100:")
    for who, sizes in (("chosen", ours), ("ran", ran), ("rule of thumb", rule)):
        if sizes is not None and batch.micro_batches(sizes):
            found = estimate(shape, sizes, batch, framework, prices)
            print(f"  {who}: {axes_words(sizes)}: {found.seconds:.1f} s")
