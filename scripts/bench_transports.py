"""What each mode of symmetric memory makes of a step: memory, copies, predicted time.

    python scripts/bench_transports.py                  # steps of one host, every mode
    python scripts/bench_transports.py --case tp        # one of the cases of plans
    python scripts/bench_transports.py --json OUT --docs

Every row is a compile by XLA's own compiler without a GPU; times are predicted, with
NCCL's own settings on rings, under the better of the policies default and zero.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from planned_cases import CASES, ONE_HOST, OPTIONS, read_rows, write_rows

from lagom_jax.cluster import Cluster
from lagom_jax.commands.terminal import import_jax
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.replay import replay
from lagom_jax.options import structure_of
from lagom_jax.options.off_rings import MODES, ON, SYMMETRIC
from lagom_jax.planner import Planner
from lagom_jax.program.build import build_program
from lagom_jax.units import in_bytes

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "benchmarks" / "transports.md"
STEPS = ONE_HOST | CASES
AS_IT_IS = "as it is"
USUAL = {
    AS_IT_IS: {},
    "all-gather mode": {MODES["all-gather"]: ON},
    "permute mode": {MODES["collective-permute"]: ON},
    "symmetric buffers": {SYMMETRIC: True},
}


@dataclasses.dataclass(frozen=True)
class TransportRow:
    """One mode of one step."""

    case: str
    mode: str
    versions: str
    step_seconds: float
    policy: str
    contention_seconds: float
    peak_bytes: int | None
    symmetric_bytes: int
    copies: int
    transports: dict[str, int]
    """Runs of collectives in a step, by where they run."""


def rows(case: str) -> Iterator[TransportRow]:
    """A row for each mode that changes the program."""
    import_jax()
    import lagom_models

    model_name, name, asked = STEPS[case]
    cluster = Cluster.parse(name)
    made = lagom_models.build(model_name, devices=cluster.devices, **asked)
    planner = Planner(
        made.function, *made.arguments, cluster=cluster, compiler_options=OPTIONS
    )
    seen: set[str] = set()
    for mode, options in USUAL.items():
        scheduled, _ = planner.compile(dict(options))
        program = build_program(scheduled.module)
        structure = structure_of(program)
        if structure.digest in seen:
            continue
        seen.add(structure.digest)
        found = []
        for policy in ("default", "zero"):
            model = CostModel.of(cluster).with_policy(policy)
            totals = replay(program, model, model.contention()).totals
            found.append((totals.step_seconds, policy, totals, model))
        _, policy, totals, model = min(found, key=lambda one: one[0])
        where: Counter[str] = Counter()
        for site, runs, _ in program.collectives():
            carried = model.carried(site)
            own = "XLA's kernel" if site.one_shot_kernel else "rings"
            where[carried.transport if carried else own] += runs
        versions = scheduled.versions
        yield TransportRow(
            *(case, mode, f"jaxlib {versions['jaxlib']}", totals.step_seconds, policy),
            totals.contention_seconds,
            scheduled.peak_memory_bytes,
            scheduled.symmetric_bytes,
            structure.kernels.get("copy", 0),
            dict(where),
        )


def table(found: list[TransportRow]) -> str:
    """Markdown: a line for each row."""
    lines = [
        "| step | jaxlib | mode | collectives run by | predicted step | of it taken "
        "| contention | policy | memory | of it symmetric | copies |",
        "|---|---|---|---|--:|--:|--:|---|--:|--:|--:|",
    ]
    usual = {
        (row.case, row.versions): row.step_seconds
        for row in found
        if row.mode == AS_IT_IS
    }
    for row in found:
        before = usual.get((row.case, row.versions))
        taken = ""
        if before is not None and row.mode != AS_IT_IS:
            taken = f"{1 - row.step_seconds / before:.1%}"
        where = ", ".join(f"{runs} {name}" for name, runs in row.transports.items())
        peak = "" if row.peak_bytes is None else in_bytes(row.peak_bytes)
        lines.append(
            f"| {row.case} | {row.versions.removeprefix('jaxlib ')} | {row.mode} "
            f"| {where} | {1e3 * row.step_seconds:.2f} ms | {taken} "
            f"| {1e3 * row.contention_seconds:.2f} ms | {row.policy} | {peak} "
            f"| {in_bytes(row.symmetric_bytes)} | {row.copies} |"
        )
    return "\n".join(lines)


def page(found: list[TransportRow]) -> str:
    return (
        "# Transports\n\nMade by `python scripts/bench_transports.py`. Schedules, "
        "memory and copies are those of XLA's real compiler; times are predicted, with "
        "NCCL's own settings on rings, under the better of the policies default and "
        "zero. Modes that change nothing are left out. Steps of one host: llama-3-8b "
        "of 4 layers; the others are [the cases of plans](levers.md), whole. "
        "*Symmetric* memory is an upper bound: all buffers less what XLA "
        "counts as its peak, which leaves it out. "
        "[What a transport is](../../explanation/transports.md).\n\n"
        f"{table(found)}\n\n"
        "Where groups reach over several hosts (all of FSDP on several hosts, a part "
        "of the others) collectives stay on rings: there the modes only cost memory. "
        "What a plan takes of this, beside all other levers, is in [the table of "
        "levers](levers.md): its rows *without transports* and *transports alone*.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Modes of symmetric memory.")
    parser.add_argument("--case", action="append", choices=tuple(STEPS))
    parser.add_argument("--json", type=Path, metavar="OUT", help="write rows as JSON")
    parser.add_argument("--from", action="append", dest="made", type=Path)
    parser.add_argument("--docs", action="store_true", help=f"rewrite {PAGE.name}")
    asked = parser.parse_args()
    found = list(read_rows(asked.made or (), TransportRow))
    for case in () if asked.made and not asked.case else asked.case or ONE_HOST:
        for row in rows(case):
            found.append(row)
            print(table([row]).splitlines()[-1], flush=True)
            write_rows(asked.json, found)
    if asked.docs:
        PAGE.write_text(page(found))


if __name__ == "__main__":
    main()
