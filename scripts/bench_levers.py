"""How much of the time that communication costs a plan wins back, lever by lever.

    python scripts/bench_levers.py                       # prints the tables
    python scripts/bench_levers.py --json OUT            # and writes the rows as JSON
    python scripts/bench_levers.py --docs                # rewrites docs/benchmarks
    python scripts/bench_levers.py --case fsdp --case moe --controls sequence
    python scripts/bench_levers.py --from A --from B --docs  # from rows made before

Whole it takes about an hour on two cores.

For each case XLA's default with NCCL's default settings stands beside the whole plan,
beside each lever alone, beside NCCL's settings alone, and beside what others recommend.
The recovered share is (default - tuned) / (default - bound), where the bound is the
larger of computation alone and of the busiest link alone. Everything is predicted, on
real schedules; nothing runs on a GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from lagom_jax.cluster import Cluster
from lagom_jax.commands.terminal import import_jax
from lagom_jax.plan import Plan
from lagom_jax.planning import LEVERS, Budget, Planner
from lagom_jax.search.controls import PRESETS

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks" / "levers.md"
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "fsdp": ("llama-3-8b", "h100:8x8", {"parallelism": "fsdp", "batch": 1}),
    "fsdp, batch 2": ("llama-3-8b", "h100:8x8", {"parallelism": "fsdp", "batch": 2}),
    "fsdp, unrolled": (
        "llama-3-8b",
        "h100:8x8",
        {"parallelism": "fsdp", "batch": 1, "layers": 8, "scan": False},
    ),
    "tp": ("llama-3-8b", "h100:2x8", {"parallelism": "tp", "batch": 8}),
    "tp, sliced": ("llama-3-8b", "h100:2x8", {"parallelism": "tp-sliced", "batch": 8}),
    "moe": ("deepseek-moe-16b", "h100:8x8", {"parallelism": "ep"}),
    "moe, small": ("olmoe-1b-7b", "h100:8x8", {"parallelism": "ep"}),
    "fsdp, A40": ("llama-3-8b", "a40-nvlink:2x8", {"parallelism": "fsdp"}),
}
# Without a GPU XLA cannot autotune its own matmul kernels, and refuses some shapes.
OPTIONS = {"xla_gpu_enable_triton_gemm": False}
ALONE = (
    ("options", ("options", "settings")),
    ("costs", ("costs", "settings")),
    ("order", ("order", "settings")),
)
"""Each lever by itself; settings are always among them, since a lever is judged by
what it makes of the step with settings of its own."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One policy on one case."""

    case: str
    policy: str
    step_seconds: float
    default_seconds: float
    bound_seconds: float
    recovered: float | None
    peak_bytes: int | None
    compiles: int
    budget: int
    """Compiles that a plan might use."""
    versions: str


def planner_of(case: str) -> Planner:
    import lagom_models

    model, name, asked = CASES[case]
    cluster = Cluster.parse(name)
    step = lagom_models.build(model, devices=cluster.devices, **asked)
    return Planner(
        step.function,
        *step.arguments,
        cluster=cluster,
        compiler_options=OPTIONS,
        name=step.name,
        description=step.describe(),
    )


def rows(
    case: str, planner: Planner, controls: str, budget: int, *, whole_only: bool
) -> Iterator[Row]:
    def say(what: str) -> None:
        print(f"{case}: {what}", file=sys.stderr, flush=True)

    def planned(levers: Iterable[str], *, recipes: bool = False) -> Plan:
        return planner.plan(
            levers=tuple(levers),
            controls=controls,
            budget=Budget(compiles=budget),
            compare_recipes=recipes,
            progress=say,
        )

    whole = planned(LEVERS, recipes=not whole_only)
    default, bound = whole.evidence.default.step_seconds, whole.evidence.bound_seconds
    held = whole.holds_for.versions
    versions = ", ".join(f"{name} {version}" for name, version in held)

    def row(policy: str, seconds: float, peak: int | None, compiles: int) -> Row:
        could = default - bound
        recovered = (default - seconds) / could if could > 0 else None
        return Row(
            *(case, policy, seconds, default, bound, recovered, peak, compiles),
            budget=budget,
            versions=versions,
        )

    def row_of(policy: str, plan: Plan) -> Row:
        evidence = plan.evidence
        return row(
            policy,
            evidence.tuned.step_seconds,
            evidence.tuned_peak,
            evidence.compiles,
        )

    made = whole.evidence.candidates
    # What is compiled only to be compared does not belong to the plan's own budget.
    own = sum(
        one.status != "not tried"
        and not one.name.partition(" ")[2].startswith("recipe")
        for one in made
    )
    yield dataclasses.replace(row_of("lagom", whole), compiles=own)
    for policy, levers in () if whole_only else ALONE:
        yield row_of(f"{policy} alone", planned(levers))
    yield row_of("settings alone", planned(["settings"]))
    for candidate in made:
        title = candidate.name.partition(" ")[2]
        if title.startswith("recipe") and candidate.step_seconds is not None:
            yield row(title, candidate.step_seconds, candidate.peak_bytes, 1)


def table(found: list[Row]) -> str:
    """A row for each policy, a column for each case."""
    cases = list(dict.fromkeys(row.case for row in found))
    policies = list(dict.fromkeys(row.policy for row in found))
    by = {(row.case, row.policy): row for row in found}
    any_row = [next(row for row in found if row.case == case) for case in cases]
    lines = [
        f"| | {' | '.join(cases)} |",
        "|---|" + "--:|" * len(cases),
        f"| default | {' | '.join(_ms(one.default_seconds) for one in any_row)} |",
        f"| bound | {' | '.join(_ms(one.bound_seconds) for one in any_row)} |",
    ]
    for policy in policies:
        cells = [_cell(by.get((case, policy))) for case in cases]
        lines.append(f"| {policy} | {' | '.join(cells)} |")
    memory = [
        "" if (row := by.get((case, "lagom"))) is None else _gb(row.peak_bytes)
        for case in cases
    ]
    lines.append(f"| peak memory, lagom | {' | '.join(memory)} |")
    return "\n".join(lines)


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    share = "" if row.recovered is None else f" ({100 * row.recovered:.0f} %)"
    return f"{row.default_seconds / row.step_seconds:.3f}{share}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"


def _gb(nbytes: int | None) -> str:
    return "" if nbytes is None else f"{nbytes / 1e9:.2f} GB"


def page(found: dict[str, list[Row]]) -> str:
    every = [row for listed in found.values() for row in listed]
    versions = " and ".join(dict.fromkeys(row.versions for row in every))
    budgets = " or ".join(dict.fromkeys(str(row.budget) for row in every))
    cases = dict.fromkeys(row.case for row in every)
    chosen = shlex.join(part for case in cases for part in ("--case", case))
    parts = [
        "# Levers",
        "",
        f"Made by `python scripts/bench_levers.py {chosen}`: Python "
        f"{platform.python_version()}, {versions}; at most {budgets} compiles for "
        "each plan. All times are predicted, on schedules of XLA's real compiler. "
        "Cells are speedups over XLA's default with NCCL's default settings, and in "
        "brackets the recovered share: what of the default's time above the bound is "
        "gone. The bound is computation alone, or the busiest link alone, of the "
        "program as it is. A lever *alone* has settings of its own; recipes leave "
        "settings to NCCL, as their authors do. "
        "[What the figures say](../planning.md#what-it-gives).",
        "",
        "| case | step |",
        "|---|---|",
    ]
    for case in cases:
        model, cluster, asked = CASES[case]
        words = ", ".join(f"{name} {value}" for name, value in asked.items())
        parts.append(f"| {case} | {model} on {cluster}: {words} |")
    for controls, listed in found.items():
        parts += ["", f"## {controls}: {PRESETS[controls].meaning}", "", table(listed)]
    return "\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Levers, alone and together.")
    parser.add_argument("--case", action="append", choices=tuple(CASES))
    parser.add_argument("--controls", action="append", choices=tuple(PRESETS))
    parser.add_argument("--compiles", type=int, default=Budget().compiles)
    parser.add_argument("--json", metavar="OUT", help="write the rows as JSON")
    parser.add_argument(
        "--from",
        action="append",
        dest="made",
        metavar="JSON",
        help="take rows from a file that --json wrote instead of measuring",
    )
    parser.add_argument(
        "--whole-only",
        action="store_true",
        help="the whole plan and settings alone only; so it is for all but the first "
        "kind of controls anyway",
    )
    parser.add_argument(
        "--docs", action="store_true", help="rewrite docs/benchmarks/levers.md"
    )
    asked = parser.parse_args()
    kinds = asked.controls or ["tuner", "sequence"]
    found: dict[str, list[Row]] = {}
    for path in asked.made or ():
        for fields in json.loads(Path(path).read_text()):
            found.setdefault(fields.pop("controls"), []).append(Row(**fields))
    if asked.made:
        write(asked, found)
    else:
        import_jax()
    for case in () if asked.made else asked.case or CASES:
        # What is compiled for one kind of controls need not be again for another.
        planner = planner_of(case)
        for number, controls in enumerate(kinds):
            whole_only = asked.whole_only or number > 0
            for row in rows(
                case, planner, controls, asked.compiles, whole_only=whole_only
            ):
                found.setdefault(controls, []).append(row)
                words = f"{row.case:15} {controls:8} {row.policy:30} {_cell(row)}"
                print(words, flush=True)
        # After each case, so that nothing is lost where the time runs out.
        write(asked, found)
    for controls, listed in found.items():
        print(f"\n{controls}: {PRESETS[controls].meaning}\n\n{table(listed)}")


def write(asked: argparse.Namespace, found: dict[str, list[Row]]) -> None:
    if asked.json:
        listed = [
            dataclasses.asdict(row) | {"controls": controls}
            for controls, rows_ in found.items()
            for row in rows_
        ]
        Path(asked.json).write_text(json.dumps(listed, indent=2) + "\n")
    if asked.docs:
        PAGE.write_text(page(found))


if __name__ == "__main__":
    main()
