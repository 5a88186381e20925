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
import json
import random
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from mesh_published import published, rank_correlation

from lagom_jax.cluster import Cluster
from lagom_jax.cost.ensemble import Ensemble
from lagom_jax.errors import LagomError
from lagom_jax.mesh.candidates import Asks, candidates
from lagom_jax.mesh.choosing import choose
from lagom_jax.mesh.estimate import estimate
from lagom_jax.mesh.frameworks import framework_named
from lagom_jax.mesh.mesh_prices import MeshPrices
from lagom_jax.mesh.model_shape import published_shape
from lagom_jax.mesh.pictures import axes_words
from lagom_jax.mesh.rules_of_thumb import RULES, by_rule
from lagom_jax.mesh.sizes import MeshSizes, StepBatch
from lagom_jax.typed_json import plain, typed

XLA = framework_named("xla")
LENGTH, EACH = 2048, 2
"""Tokens of a sequence, and sequences of a GPU, in the cases that are compiled."""
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
                lines = ",\n".join(map(json.dumps, rows))
                path.write_text(f"[\n{lines}\n]\n")
                print(model, cluster, axes_words(sizes), row.get("step_seconds"))


def score(path: Path) -> None:
    cases: defaultdict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in json.loads(path.read_text()):
        if "step_seconds" in row:
            cases[row["model"], row["cluster"]].append(row)
    print(
        "| case | meshes | of | chosen / best | of three / best | rank "
        "| closed form, CPU | compiles, wall | times less | step, median error "
        "| memory, median error | fit | wrongly said to | wrongly said not to |"
    )
    print("| --- |" + 13 * " --: |")
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
        held = np.array([row["memory_bytes"] for row in rows])
        memory = np.array([one.memory.total for one in found])
        room = asked().memory_fraction * where.gpu.memory_bytes
        fits, said_to_fit = held <= room, memory <= room
        wall = sum(row["wall_seconds"] for row in rows)
        # What does not fit is no choice; to choose it is as bad as can be.
        taken = np.where(fits, real, np.inf)[said_to_fit][said[said_to_fit].argsort()]
        by_choice = taken / real[fits].min()
        rank = f"{rank_correlation(real, said):.2f}" if len(rows) > 2 else "-"
        print(
            f"| {model} on {cluster} | {len(rows)} | {len(all_of_it)} "
            f"| {by_choice[0]:.3f} | {by_choice[:3].min():.3f} "
            f"| {rank} | {seconds:.2f} s "
            f"| {wall:.0f} s | {wall / seconds:.0f} "
            f"| {np.median(np.abs(said / real - 1)):.1%} "
            f"| {np.median(np.abs(memory / held - 1)):.1%} | {fits.sum()} "
            f"| {(said_to_fit & ~fits).sum()} | {(fits & ~said_to_fit).sum()} |"
        )


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
