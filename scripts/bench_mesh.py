"""The choice of meshes: against compile-and-replay, published runs and rules of thumb.

    python scripts/bench_mesh.py truth ROWS.json --case llama-3-8b@h100:2x8
    python scripts/bench_mesh.py truth ROWS.json --best 5 --others 4 --case ...
    python scripts/bench_mesh.py score ROWS.json
    python scripts/bench_mesh.py published RUNS.csv
    python scripts/bench_mesh.py rules
    python scripts/bench_mesh.py large

`truth` compiles every mesh of a case without a GPU and replays it, which takes hours;
it goes on where it stopped. The others take seconds to minutes. Figures and what they
mean: docs/reference/benchmarks/mesh.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from lagom_jax.cluster import Cluster
from lagom_jax.cost.ensemble import Ensemble
from lagom_jax.errors import LagomError
from lagom_jax.measurements.table import load_text, parse_table
from lagom_jax.mesh.candidates import Asks, candidates
from lagom_jax.mesh.choose import choose
from lagom_jax.mesh.estimate import estimate
from lagom_jax.mesh.frameworks import framework_named, frameworks
from lagom_jax.mesh.mesh_prices import MeshPrices
from lagom_jax.mesh.model_shape import published_shape
from lagom_jax.mesh.pictures import axes_words
from lagom_jax.mesh.published_runs import RUN_COLUMNS, predicted_run
from lagom_jax.mesh.rules_of_thumb import RULES, by_rule
from lagom_jax.mesh.sizes import MeshSizes, StepBatch
from lagom_jax.typed_json import plain, typed

XLA = framework_named("xla")
LENGTH, EACH = 2048, 2
"""Tokens of a sequence, and sequences of a GPU, in the cases that are compiled."""
TIE = 1.03
"""Measured steps nearer than that are ties: single iterations."""
RULE_CASES = [
    (model, cluster, framework)
    for framework in ("maxtext", "megatron")
    for model in ("llama-3-8b", "llama-3-70b", "mixtral-8x7b", "gpt-3-175b")
    for cluster in ("h100:8x8", "a100:16x8")
]


def asked() -> Asks:
    """What the cases settle: layers computed again, and what the zoo can build."""
    return Asks(remats=("full",), simple=True)


def meshes(model: str, cluster: str) -> list[MeshSizes]:
    """Every mesh of a case: one micro batch, or small ones in a pipeline."""
    where = Cluster.parse(cluster)
    batch = StepBatch(EACH * where.devices, LENGTH)
    found = candidates(published_shape(model), where, batch, XLA, asked()).found
    return [
        sizes
        for sizes in found
        if (sizes.micro_batch <= EACH if sizes.pipeline > 1 else _at_once(batch, sizes))
    ]


def _at_once(batch: StepBatch, sizes: MeshSizes) -> bool:
    return batch.micro_batches(sizes) == 1


def some_of(model: str, cluster: str, best: int, others: int) -> list[MeshSizes]:
    """The best by the closed form, and others by lot, the same ones each time."""
    where = Cluster.parse(cluster)
    prices = MeshPrices(Ensemble.of(where, members=0).likeliest)
    batch, shape = StepBatch(EACH * where.devices, LENGTH), published_shape(model)
    ranked = sorted(
        meshes(model, cluster),
        key=lambda sizes: estimate(shape, sizes, batch, XLA, prices).seconds,
    )
    left = ranked[best:]
    drawn = random.Random(f"{model}@{cluster}").sample(left, min(others, len(left)))
    return ranked[:best] + drawn


def truth(path: Path, cases: list[str], best: int | None, others: int) -> None:
    import lagom_models
    from lagom_jax.api import report_scheduled
    from lagom_jax.commands.terminal import import_jax
    from lagom_jax.compile import Compiler
    from lagom_jax.scheduled import compile_scheduled

    import_jax(None)
    rows = json.loads(path.read_text()) if path.exists() else []
    known = {(row["model"], row["cluster"], json.dumps(row["mesh"])) for row in rows}
    with Compiler() as compiler:
        for case in cases:
            model, _, cluster = case.partition("@")
            where = Cluster.parse(cluster)
            chosen = (
                meshes(model, cluster)
                if best is None
                else some_of(model, cluster, best, others)
            )
            for sizes in chosen:
                mesh = plain(sizes)
                if (model, cluster, json.dumps(mesh)) in known:
                    continue
                row: dict[str, Any] = {"model": model, "cluster": cluster, "mesh": mesh}
                began = time.perf_counter()
                try:
                    batch = StepBatch(EACH * where.devices, LENGTH)
                    step = lagom_models.build_on(model, sizes, batch)
                    done = compile_scheduled(
                        *(step.function, *step.arguments),
                        cluster=where,
                        compiler=compiler,
                    )
                    report = report_scheduled(done)
                    row["step_seconds"] = report.step_seconds
                    row["memory_bytes"] = done.peak_memory_bytes
                except LagomError as error:
                    row["refused"] = str(error)[:300]
                row["wall_seconds"] = round(time.perf_counter() - began, 1)
                rows.append(row)
                path.write_text(json.dumps(rows, indent=1) + "\n")
                print(model, cluster, axes_words(sizes), row.get("step_seconds"))


def score(path: Path) -> None:
    cases: defaultdict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in json.loads(path.read_text()):
        if "step_seconds" in row:
            cases[row["model"], row["cluster"]].append(row)
    print(
        "| case | meshes | of | chosen / best | of three / best | rank "
        "| closed form, CPU "
        "| compiles, wall | times less | step, median error | memory, median error |"
    )
    print("| --- |" + 10 * " --: |")
    for (model, cluster), rows in cases.items():
        where = Cluster.parse(cluster)
        prices = MeshPrices(Ensemble.of(where, members=0).likeliest)
        batch, shape = StepBatch(EACH * where.devices, LENGTH), published_shape(model)
        began = time.process_time()
        all_of_it = meshes(model, cluster)
        found = [
            estimate(shape, typed(MeshSizes, row["mesh"]), batch, XLA, prices)
            for row in rows
        ]
        seconds = time.process_time() - began
        real = np.array([row["step_seconds"] for row in rows])
        said = np.array([one.seconds for one in found])
        error = np.median(np.abs(said / real - 1))
        memory = np.median(
            [
                abs(one.memory.total / row["memory_bytes"] - 1)
                for one, row in zip(found, rows, strict=True)
            ]
        )
        wall = sum(row["wall_seconds"] for row in rows)
        by_choice = real[said.argsort()] / real.min()
        rank = f"{rank_correlation(real, said):.2f}" if len(rows) > 2 else "-"
        print(
            f"| {model} on {cluster} | {len(rows)} | {len(all_of_it)} "
            f"| {by_choice[0]:.3f} | {by_choice[:3].min():.3f} "
            f"| {rank} | {seconds:.2f} s "
            f"| {wall:.0f} s | {wall / seconds:.0f} | {error:.1%} | {memory:.1%} |"
        )


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
    _ranks_held_out(done)
    _memory(done)
    _among_best(done)
    _bigscience()


def _levels(done: list[Any]) -> None:
    print(
        "\n| framework | rows | level | left, median | p90 |\n"
        "| --- | --: | --: | --: | --: |"
    )
    known = {one.published_as: one.level for one in frameworks().values()}
    by_name: defaultdict[str, list[float]] = defaultdict(list)
    for one in done:
        if one.cells["status"] == "ok" and one.cells["step_time_s"]:
            ratio = float(one.cells["step_time_s"]) / one.result.seconds
            by_name[one.cells["framework"]].append(ratio)
    for name, ratios in by_name.items():
        level = known.get(name, 1.0) * statistics.median(ratios)
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
        f"{np.median(found):.2f}, mean {np.mean(found):.2f}, lowest {min(found):.2f}"
    )


def _ranks_held_out(done: list[Any]) -> None:
    """Ranks of Megatron-DeepSpeed's groups, its two constants fitted to the others.

    To step times, by the mean distance from their median; never to ranks.
    """
    name = "megatron-deepspeed"
    usual = framework_named(name)
    rows = [
        one.cells
        for one in done
        if one.cells["framework"] == usual.published_as
        and one.cells["status"] == "ok"
        and one.cells["step_time_s"]
    ]
    said: dict[tuple[float, float], np.ndarray] = {}
    for short in (0.0, 200.0, 400.0, 600.0, 800.0, 1000.0):
        for stretch in (1.0, 2.0, 3.0, 4.0, 6.0, 8.0):
            changed = dataclasses.replace(
                usual, short_tokens=short, tensor_stretch=stretch
            )
            said[short, stretch] = np.array(
                [predicted_run(cells, framework=changed).seconds for cells in rows]
            )
    real = np.array([float(cells["step_time_s"]) for cells in rows])
    groups = np.array([cells["rank_group"] for cells in rows])
    found: list[float] = []
    for group in sorted(set(groups) - {""}):
        inside = groups == group
        if inside.sum() < 3:
            continue

        def distance(key: tuple[float, float], others: np.ndarray = ~inside) -> float:
            ratios = np.log(real[others] / said[key][others])
            return float(np.abs(ratios - np.median(ratios)).mean())

        best = min(said, key=distance)
        rank = rank_correlation(real[inside], said[best][inside], tie=TIE)
        if not np.isnan(rank):
            found.append(rank)
    print(
        f"{len(found)} groups of {usual.published_as}, constants fitted to the times "
        f"of the others: median {np.median(found):.2f}"
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
        name = {"Megatron-Bridge": "megatron", "MaxText (JAX)": "maxtext"}.get(
            cells["framework"]
        )
        key = tuple(cells[c] for c in ("model", "gpu", "num_gpus", "precision"))
        if name is None or key in seen or cells["status"] != "ok":
            continue
        seen.add(key)
        run = found.run
        framework = framework_named(name)
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


def rules() -> None:
    print("| model, cluster, framework | ours | rule | its mesh | its step / ours |")
    print("| --- | --- | --- | --- | --: |")
    for model, name, how in RULE_CASES:
        cluster, framework = Cluster.parse(name), framework_named(how)
        shape = published_shape(model)
        batch = StepBatch(max(1024, 2 * cluster.devices), min(shape.sequence, 4096))
        found = choose(
            model,
            cluster=cluster,
            tokens=batch.tokens,
            sequence=batch.length,
            framework=framework,
            ensemble=Ensemble.of(cluster, members=0),
        )
        if not found.choices:
            print(f"| {model}, {name}, {how} | nothing fits | | | |")
            continue
        prices = MeshPrices(Ensemble.of(cluster, members=0).likeliest)
        for rule in RULES:
            if rule.name != framework.name:
                continue
            sizes = by_rule(rule, shape, cluster, batch, framework)
            if sizes is None:
                continue
            other = estimate(shape, sizes, batch, framework, prices).seconds
            print(
                f"| {model}, {name}, {how} | {axes_words(found.best.sizes)} "
                f"| {rule.name} | {axes_words(sizes)} "
                f"| {other / found.best.step_seconds:.2f} |"
            )


def large() -> None:
    print(
        "| model | GPUs | meshes that fit | priced | CPU |\n"
        "| --- | --: | --: | --: | --: |"
    )
    for model, framework, cluster in (
        ("llama-3-8b", "xla", "h100:8x8"),
        ("llama-3-8b", "maxtext", "h100:8x8"),
        ("llama-3.1-405b", "maxtext", "h100:2048x8"),
        ("mixtral-8x7b", "maxtext", "h100:2048x8"),
        ("gpt-3-175b", "megatron", "h100:2048x8"),
    ):
        began = time.process_time()
        where = Cluster.parse(cluster)
        found = choose(
            model,
            cluster=where,
            tokens=max(1024, where.devices) * 4096,
            sequence=4096,
            framework=framework,
        )
        spent = time.process_time() - began
        print(
            f"| {model}, {framework} | {where.devices} "
            f"| {len(found.candidates.found)} | {found.evaluated} | {spent:.1f} s |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "what", choices=("truth", "score", "published", "rules", "large")
    )
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--case", action="append", default=[], metavar="MODEL@CLUSTER")
    parser.add_argument(
        "--best", type=int, help="only so many, the first by the closed form, ..."
    )
    parser.add_argument("--others", type=int, default=0, help="... and others by lot")
    arguments = parser.parse_args()
    if arguments.what in ("truth", "score", "published") and arguments.file is None:
        parser.error(f"{arguments.what} needs a file")
    if arguments.what == "truth":
        truth(arguments.file, arguments.case, arguments.best, arguments.others)
    elif arguments.what == "score":
        score(arguments.file)
    elif arguments.what == "published":
        published(arguments.file)
    elif arguments.what == "rules":
        rules()
    else:
        large()


if __name__ == "__main__":
    main()
