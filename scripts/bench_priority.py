"""The paper's priority H beside other ways to choose the next group.

    python scripts/bench_priority.py [--steps N]       # prints, and rewrites its page

Steps made by hand at random: loops whose body launches two to five collectives of
different sizes together, beside kernels that arithmetic limits and kernels that memory
limits, so that all groups share one window and their prices differ. Every way to choose
descends from the same start; the local search, which every way may be followed by, is
left out and then added. AutoCCL's search stands beside them with its own objective and
with the step as objective. Everything is predicted.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from bench_search import collective

from lagom_jax.cluster import Cluster
from lagom_jax.cost.model import CostModel
from lagom_jax.hlo.matmul import Matmul
from lagom_jax.hlo.work import Work
from lagom_jax.program.program import (
    Kernel,
    Launch,
    Loop,
    Node,
    Program,
    Run,
    Stream,
    Wait,
)
from lagom_jax.settings.autoccl import AutoCcl
from lagom_jax.settings.controls import named
from lagom_jax.settings.lagom import Lagom
from lagom_jax.settings.policy import Policy, step_time
from lagom_jax.settings.space import space_of
from lagom_jax.settings.stage import Stage

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "benchmarks" / "priority.md"
CLUSTERS = ("a40-nvlink:2x8", "h100:2x8")
KINDS = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all")
POLICIES: dict[str, Policy] = {
    "least H first": Lagom(look_around=False),
    "dearest first": Lagom(look_around=False, buys="dearest"),
    "in program order": Lagom(look_around=False, buys="first"),
    "least H, local search": Lagom(),
    "dearest, local search": Lagom(buys="dearest"),
    "AutoCCL": AutoCcl(),
    "AutoCCL, by the step": AutoCcl(objective=step_time),
}
SAME = 1e-4
SAID = """Which group is bought for first matters where groups share a window *and*
what is bought for one leaves less for another; where all can be hidden, or none, every
way ends at the same settings. The local search that follows takes back most of what is
left. What makes the difference to AutoCCL is the objective, not the order: its own
search with the step as objective comes close to Lagom's."""


def kernel(lot: random.Random, number: int) -> Run:
    if lot.random() < 0.5:
        m = lot.choice((2048, 4096, 8192))
        product = Matmul(1, m, 4096, 4096, "bf16", "bf16", "bf16")
        moved = 2 * 4096 * (m + 4096), 2 * m * 4096
        work = Work("matmul", product.flops, *moved, (product,))
    else:
        nbytes = int(2 ** lot.uniform(26, 30))
        work = Work("fusion", 0.0, nbytes, nbytes)
    return Run(Kernel(f"kernel {number}", work))


def step(lot: random.Random) -> Program:
    """A loop whose groups share a window; so many that some are exposed."""
    count = lot.randint(2, 5)

    def body() -> Iterator[Node]:
        for number in range(count):
            nbytes = int(2 ** lot.uniform(23, 28)) // 512 * 512
            made = collective(number, lot.choice(KINDS), nbytes)
            yield Launch(made, Stream.COLLECTIVE, number)
        for number in range(lot.randint(2, 8)):
            yield kernel(lot, number)
        yield Wait(tuple(range(count)))

    return Program("by hand", (Loop("layers", tuple(body()), 8, True),), 16)


def gains(program: Program, cluster: Cluster) -> dict[str, tuple[float, int, int]]:
    """Of each policy the step over the default's, evaluations, and pricings."""
    found: dict[str, tuple[float, int, int]] = {}
    for name, policy in POLICIES.items():
        model = CostModel.of(cluster)
        stage = Stage(program, space_of(program, cluster, named("tuner")), model)
        before = stage.score(stage.untouched).step_seconds
        chosen = policy.choose(stage)
        pricings = stage.pricings
        after = stage.score(chosen.choice).step_seconds
        found[name] = after / before, chosen.evaluations, pricings
    return found


def table(rows: list[dict[str, tuple[float, int, int]]]) -> str:
    lines = [
        "| way to choose | step over the default: mean | shorter than least H on | "
        "longer on | evaluations | settings priced |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name in POLICIES:
        own = np.array([row[name][0] for row in rows])
        least = np.array([row["least H first"][0] for row in rows])
        counts = np.array([row[name][1:] for row in rows]).mean(axis=0)
        lines.append(
            f"| {name} | {own.mean():.4f} | {(own < least * (1 - SAME)).sum()} "
            f"| {(own > least * (1 + SAME)).sum()} | {counts[0]:.0f} "
            f"| {counts[1]:.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="The priority H, and others.")
    parser.add_argument("--steps", type=int, default=20)
    asked = parser.parse_args()
    parts: list[str] = []
    for name in CLUSTERS:
        lot, cluster = random.Random(f"priority on {name}"), Cluster.parse(name)
        rows = [gains(step(lot), cluster) for _ in range(asked.steps)]
        parts.append(f"## {asked.steps} steps on {name}\n\n{table(rows)}")
        print(parts[-1], flush=True)
    PAGE.write_text(
        "# The priority H\n\n"
        f"Made by `python scripts/bench_priority.py --steps {asked.steps}`: steps made "
        "by hand at random, in which all groups of collectives share one window. All "
        "times are predicted. *Settings priced* counts the settings of collectives "
        "that a search asks the model about: without a model each is a measurement on "
        "the machine, so they belong to the evaluations.\n\n"
        + "\n\n".join(parts)
        + "\n\n"
        + SAID
        + "\n"
    )


if __name__ == "__main__":
    main()
