"""Scores predictions of collectives off the rings with what others have published.

    python scripts/score_transports.py           # tables, and a matmul beside each
    python scripts/score_transports.py --step    # and a step of Llama, compiled

Nothing in the model was fitted to any of these figures; what is estimated says so in
`lagom_jax/cost/transports.json`.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import statistics
from pathlib import Path

import numpy as np

from lagom_jax.cluster import Cluster
from lagom_jax.cost.collective import collective_seconds
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.replay import replay
from lagom_jax.cost.span import Span
from lagom_jax.cost.transport_constants import load_transport_constants
from lagom_jax.cost.transports import PlacedCall
from lagom_jax.hlo.collective import Collective
from lagom_jax.hlo.groups import Groups
from lagom_jax.hlo.work import Matmul, Work
from lagom_jax.plan.transport import CtaPolicy
from lagom_jax.program.program import Kernel, Launch, Program, Run, Stream, Wait

TABLE = Path(__file__).parents[1] / "lagom_jax" / "cost" / "measured" / "transports.csv"
H100 = Cluster.parse("h100:1x8")
NCCL = "2.29.7"
# pytorch issue 172714: 8192^3 in f16 beside an all-gather of 64 MiB a rank.
SIDE, PART = 8192, 64 << 20
PUBLISHED_MS = {"one after the other": 2.96, "on rings": 2.02, "by copy engines": 1.77}
SYMMETRIC = {"xla_gpu_experimental_enable_nccl_symmetric_buffers": True}
OPTIONS = {"xla_gpu_enable_triton_gemm": False}


def table() -> None:
    """Small collectives on rings and by symmetric kernels."""
    constants = load_transport_constants()
    off: dict[str, list[float]] = {"rings": [], "symmetric": []}
    with TABLE.open() as lines:
        rows = list(csv.DictReader(lines))
    print("op              MiB   rings measured/predicted   symmetric, kernel, blocks")
    for row in rows:
        nbytes, ranks = int(row["tensor_bytes"]), int(row["group_size"])
        span = Span(ranks, 1, ranks)
        rings = 1e6 * collective_seconds(row["op"], nbytes, span, H100, nccl=NCCL)
        call = PlacedCall(row["op"], nbytes, span, H100, ("bf16",), 1)
        found = call.symmetric(constants)
        symmetric = 1e6 * found.seconds
        off["rings"].append(abs(rings / float(row["rings_us"]) - 1))
        off["symmetric"].append(abs(symmetric / float(row["symmetric_us"]) - 1))
        print(
            f"{row['op']:<15} {nbytes >> 20:>4} {row['rings_us']:>8} {rings:>8.1f}"
            f" {row['symmetric_us']:>10} {symmetric:>8.1f}"
            f"   {found.kernel} {found.blocks}"
        )
    for name, errors in off.items():
        print(f"{name}: median off by {100 * statistics.median(errors):.1f} %")


def pair() -> None:
    """A matmul beside an all-gather, as each transport runs it."""
    product = Matmul(1, SIDE, SIDE, SIDE, "f16", "f16", "f16")
    side = 2 * SIDE * SIDE
    matmul = Kernel("matmul", Work("matmul", product.flops, 2 * side, side, (product,)))
    gather = Collective(
        "all-gather",
        "gather",
        (("f16", PART),),
        8 * PART,
        Groups(np.arange(8).reshape(1, 8)),
        1,
        False,
        False,
        False,
        "",
        "",
    )
    model = CostModel.of(H100, NCCL)
    windowed = dataclasses.replace(
        gather, sends_symmetric=True, receives_symmetric=True
    )

    def beside(site: Collective, policy: CtaPolicy) -> float:
        nodes = (Launch(site, Stream.COLLECTIVE, 0), Run(matmul), Wait((0,)))
        under = model.with_policy(policy)
        step = Program("pair", nodes, 8)
        return 1e3 * replay(step, under, under.contention()).totals.step_seconds

    alone = 1e3 * model.kernel(matmul).seconds
    found = {
        "one after the other": alone + 1e3 * model.collective(gather).seconds,
        "on rings": beside(gather, "default"),
        "by the switch": beside(windowed, "default"),
        "by copy engines": beside(windowed, "zero"),
    }
    print(f"matmul alone {alone:.2f} ms (published about 1.41)")
    copied = 1e3 * model.with_policy("zero").collective(windowed).seconds
    print(f"all-gather by copy engines alone {copied:.2f} ms")
    for name, predicted in found.items():
        published = PUBLISHED_MS.get(name)
        print(f"{name}: {predicted:.2f} ms, published {published or 'nowhere'}")


def step() -> None:
    """Llama 3.1 8B over 8 H100, before and with symmetric memory."""
    from lagom_jax.commands.terminal import import_jax

    import_jax()
    import lagom_models
    from lagom_jax.planner import Planner
    from lagom_jax.program.build import build_program

    made = lagom_models.build("llama-3-8b", devices=8, parallelism="fsdp", batch=1)
    planner = Planner(
        made.function, *made.arguments, cluster=H100, compiler_options=OPTIONS
    )
    seconds: list[float] = []
    for options in ({}, SYMMETRIC):
        scheduled, _ = planner.compile(dict(options))
        model = CostModel.of(H100, NCCL)
        program = build_program(scheduled.module)
        totals = replay(program, model, model.contention()).totals
        seconds.append(totals.step_seconds)
    print(
        f"step: {1e3 * seconds[0]:.1f} -> {1e3 * seconds[1]:.1f} ms, "
        f"{100 * (seconds[0] / seconds[1] - 1):+.1f} % (published +7 %)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Predictions beside publications.")
    parser.add_argument("--step", action="store_true", help="compile a step, too")
    asked = parser.parse_args()
    table()
    pair()
    if asked.step:
        step()


if __name__ == "__main__":
    main()
