"""The Lagom paper's table (arXiv 2602.20656) on this project's model.

    python scripts/bench_paper.py                        # prints the table
    python scripts/bench_paper.py --json OUT             # and writes it as JSON
    python scripts/bench_paper.py --docs  # rewrites its page
    python scripts/bench_paper.py --cluster a40-nvlink:2x8 --policy lagom

The models, parallelisms and micro batches are the paper's, compiled by XLA's GPU
compiler with its latency-hiding scheduler, and replayed under the settings that each
policy chooses. Everything is predicted; nothing runs on a GPU.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import json
import os
import platform
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from planned_cases import write_page

from lagom_jax.api import tune_scheduled
from lagom_jax.cluster import Cluster
from lagom_jax.commands.terminal import import_jax
from lagom_jax.scheduled import Scheduled, compile_scheduled
from lagom_jax.settings.controls import PRESETS, named
from lagom_jax.settings.tuning import POLICIES, policy_named

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "benchmarks" / "paper.md"
DENSE = ("phi-2", "llama-3-8b", "mpt-7b")
MIXTURES = ("deepseek-moe-16b", "olmoe-1b-7b")
# The parallelism as the paper calls it, as the zoo does, and the gains over NCCL that
# the paper reports for it. Tensor parallelism there cuts the batch in two, as
# DeepSpeed-Domino does, and expert parallelism overlaps two half batches.
PARALLELISMS = {
    "FSDP": ("fsdp", DENSE, (1.10, 1.33)),
    "TP=8": ("tp-sliced", DENSE, (1.08, 1.16)),
    "EP=8": ("ep", MIXTURES, (1.07, 1.08)),
}
CLUSTERS = ("a40-nvlink:2x8", "a40-pcie:2x8", "h100:8x8", "b200:8x8")
# Without a GPU XLA cannot autotune its own matmul kernels, and refuses some shapes.
OPTIONS = {
    "xla_gpu_enable_latency_hiding_scheduler": True,
    "xla_gpu_enable_triton_gemm": False,
}


OVER_AUTOCCL = "1.03-1.27"
"""What the paper's abstract says of all its steps."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One policy on one case."""

    model: str
    parallelism: str
    cluster: str
    policy: str
    step_seconds: float
    speedup_vs_nccl: float
    floor_seconds: float
    """No settings make the schedule shorter than this."""
    evaluations: int
    controls: str


def cases(clusters: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    for cluster in clusters:
        for parallelism, (_, models, _) in PARALLELISMS.items():
            for model in models:
                yield model, parallelism, cluster


def compiled(case: tuple[str, str, str]) -> Scheduled:
    import lagom_models

    model, parallelism, name = case
    cluster = Cluster.parse(name)
    step = lagom_models.build(
        model, devices=cluster.devices, parallelism=PARALLELISMS[parallelism][0]
    )
    print(f"compiling {model} {parallelism} for {name}", file=sys.stderr)
    return compile_scheduled(
        step.function,
        *step.arguments,
        cluster=cluster,
        compiler_options=OPTIONS,
        name=step.name,
    )


def rows(
    case: tuple[str, str, str],
    scheduled: Scheduled,
    policies: Iterable[str],
    controls: str,
) -> Iterator[Row]:
    tuning = tune_scheduled(
        scheduled,
        policies=[policy_named(name) for name in policies],
        controls=named(controls),
    )
    for result in tuning.policies:
        yield Row(
            *case,
            result.policy,
            result.step_seconds,
            result.speedup_vs_nccl,
            tuning.floor_seconds,
            result.evaluations,
            controls,
        )


def table(found: list[Row]) -> str:
    """A row for each case, a column for each policy."""
    policies = list(dict.fromkeys(row.policy for row in found))
    others = [policy for policy in policies if policy != "nccl"]
    lines = [
        "| cluster | model | | NCCL's own | "
        + " | ".join(others)
        + " | floor | paper | lagom over autoccl | paper |",
        "|---|---|---|--:|" + "--:|" * (len(others) + 4),
    ]
    by_case: dict[tuple[str, str, str], dict[str, Row]] = {}
    for row in found:
        case = (row.cluster, row.parallelism, row.model)
        by_case.setdefault(case, {})[row.policy] = row
    for (cluster, parallelism, model), by_policy in by_case.items():
        some = next(iter(by_policy.values()))
        base = some.step_seconds * some.speedup_vs_nccl
        gains = [f"{by_policy[policy].speedup_vs_nccl:.3f}" for policy in others]
        low, high = PARALLELISMS[parallelism][2]
        told = f"{low:.2f}-{high:.2f}" if cluster.startswith("a40") else ""
        lines.append(
            f"| {cluster} | {model} | {parallelism} | {1e3 * base:.0f} ms | "
            f"{' | '.join(gains)} | {base / some.floor_seconds:.3f} | {told} "
            f"| {_over(by_policy)} | {OVER_AUTOCCL if told else ''} |"
        )
    return "\n".join(lines)


def _over(by_policy: dict[str, Row]) -> str:
    """Lagom's speedup over AutoCCL, where both were asked."""
    lagom, autoccl = by_policy.get("lagom"), by_policy.get("autoccl")
    if lagom is None or autoccl is None:
        return ""
    return f"{autoccl.step_seconds / lagom.step_seconds:.3f}"


def page(found: dict[str, list[Row]], versions: dict[str, str]) -> str:
    made = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    parts = [
        "# The paper's table",
        "",
        f"Made by `python scripts/bench_paper.py --docs`: Python "
        f"{platform.python_version()}, {made}. All times are predicted; columns of "
        "policies are speedups over NCCL's own choices. *floor* is what no settings "
        "can exceed for this schedule (every collective at its fastest, no "
        "contention), and *paper* the range measured there, on A40s with PyTorch, over "
        "NCCL and over AutoCCL. "
        "[What the figures say](../../explanation/search.md#the-papers-table).",
    ]
    for controls, listed in found.items():
        parts += ["", f"## {controls}: {PRESETS[controls].meaning}", "", table(listed)]
    return "\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="The Lagom paper's table.")
    parser.add_argument("--cluster", action="append", help="default: all four")
    parser.add_argument("--policy", action="append", choices=tuple(POLICIES))
    parser.add_argument("--controls", choices=tuple(PRESETS), default="fork")
    parser.add_argument("--json", metavar="OUT", help="write the rows as JSON")
    parser.add_argument(
        "--docs",
        action="store_true",
        help="rewrite docs/reference/benchmarks/paper.md, for three kinds of controls",
    )
    asked = parser.parse_args()
    policies = asked.policy or ["nccl", "autoccl", "lagom"]
    kinds = ["fork", "tuner", "sequence"] if asked.docs else [asked.controls]
    import_jax()
    found: dict[str, list[Row]] = {controls: [] for controls in kinds}
    versions: dict[str, str] = {}
    wanted = list(cases(asked.cluster or CLUSTERS))
    # Each compile is a process of its own; a thread only waits for it.
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for case, scheduled in zip(wanted, pool.map(compiled, wanted), strict=True):
            versions |= scheduled.versions
            for controls in kinds:
                found[controls] += rows(case, scheduled, policies, controls)
    for controls, listed in found.items():
        print(f"\n{controls}: {PRESETS[controls].meaning}\n\n{table(listed)}")
    if asked.json:
        listed = [dataclasses.asdict(row) for row in found[kinds[0]]]
        Path(asked.json).write_text(json.dumps(listed, indent=2) + "\n")
    if asked.docs:
        write_page(PAGE, page(found, versions))


if __name__ == "__main__":
    main()
