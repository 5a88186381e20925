"""How long a plan and a report take: anew, with kernels kept, and with the store.

    python scripts/bench_plan.py                          # prints the table
    python scripts/bench_plan.py --case demo --case moe --rounds 3
    python scripts/bench_plan.py --before ../lagom_before # beside another checkout
    python scripts/bench_plan.py --docs  # rewrites its page

Every figure is of a whole command in a process of its own, its children included. The
ways take turns, so that what else the machine does falls on all of them; the median of
CPU seconds is what to compare. That all ways find the same plan is checked, too.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from planned_cases import CASES as STEPS
from planned_cases import OPTIONS, write_page

from lagom_jax.compile import Store
from machine import processor

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "benchmarks" / "plan.md"
_PLAN = ("--compiles", "5", "--json")
_FSDP = ("llama-3-8b", "--parallelism", "fsdp", "--cluster", "h100:8x8")


def _plan_of(model: str, options: Mapping[str, Any], cluster: str) -> tuple[str, ...]:
    """The command that plans for one of the cases of the other benchmarks."""
    words = ["tune", model, "--cluster", cluster]
    for name, value in options.items():
        words += ["--unrolled"] if name == "scan" else [f"--{name}", str(value)]
    xla = (f"--option={name}={str(value).lower()}" for name, value in OPTIONS.items())
    return (*words, *xla, *_PLAN)


CASES: Mapping[str, tuple[str, ...]] = {
    "report": ("report", *_FSDP, "--json"),
    "demo": ("tune", *_FSDP, *_PLAN),
    **{case: _plan_of(m, options, c) for case, (m, c, options) in STEPS.items()},
}
# What is measured, not decided.
_TIMES = ("seconds", "compile_seconds")


@dataclasses.dataclass(frozen=True)
class Cost:
    """One run of a command."""

    cpu_seconds: float
    wall_seconds: float


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--case", action="append", choices=tuple(CASES))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--before", type=Path, help="a checkout to compare with")
    parser.add_argument("--docs", action="store_true", help=f"write {PAGE.name}")
    asked = parser.parse_args()
    text = "".join(_lines(asked.case or tuple(CASES), asked.rounds, asked.before))
    if asked.docs:
        write_page(PAGE, text)
    else:
        print(text, end="")


def _lines(cases: tuple[str, ...], rounds: int, before: Path | None) -> Iterator[str]:
    ways = ("before", *_WAYS) if before else _WAYS
    yield "# How long a plan takes\n\n"
    yield (
        f"CPU seconds of the whole command (wall seconds), median of {rounds} rounds, "
        f"the ways in turns, on {processor()} with {os.cpu_count()} cores. `anew`: "
        "nothing kept. `kernels`: kernels kept from another run. `store`: compiled "
        "steps and orders kept, too. *Same answer*: the documents of these three are "
        "equal, byte for byte, but for the times that were measured. Made by "
        "`python scripts/bench_plan.py --before CHECKOUT --docs`.\n\n"
    )
    yield f"| case | {' | '.join(ways)} | same answer |\n"
    yield f"|---|{'--:|' * len(ways)}---|\n"
    for case in cases:
        costs: dict[str, list[Cost]] = {way: [] for way in ways}
        answers: dict[str, Any] = {}
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as folder:
                for way in ways:
                    cost, answers[way] = _run(case, way, Path(folder), before)
                    costs[way].append(cost)
                    print(f"{case}, {way}: {cost}", file=sys.stderr)
        same = all(answers[way] == answers[_WAYS[0]] for way in _WAYS)
        cells = " | ".join(_cell(costs[way]) for way in ways)
        yield f"| {case} | {cells} | {'yes' if same else 'NO'} |\n"


_WAYS = ("anew", "kernels", "store")


def _cell(costs: list[Cost]) -> str:
    cpu = statistics.median(cost.cpu_seconds for cost in costs)
    wall = statistics.median(cost.wall_seconds for cost in costs)
    return f"{cpu:.1f} ({wall:.0f})"


def _run(case: str, way: str, folder: Path, before: Path | None) -> tuple[Cost, Any]:
    environ = {**os.environ, "LAGOM_STORE": str(folder / "store"), "PYTHONPATH": ""}
    if way == "before":
        environ["PYTHONPATH"] = os.pathsep.join(
            map(str, (before, before and before / "models"))
        )
    elif way == "kernels":
        # Filled by the run before, which kept steps and orders beside the kernels.
        for file, _ in Store(folder / "store").entries():
            file.unlink()
    with tempfile.TemporaryFile() as out:
        begun = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "lagom_jax", *CASES[case]],
            env=environ,
            stdout=out,
            stderr=subprocess.DEVNULL,
            cwd=folder,
        )
        _, status, used = os.wait4(process.pid, 0)
        wall = time.monotonic() - begun
        if status:
            raise SystemExit(f"{case}, {way}: the command failed ({status})")
        out.seek(0)
        answer = _decided(json.load(out))
    return Cost(used.ru_utime + used.ru_stime, wall), answer


def _decided(value: Any) -> Any:
    """A document without what was measured while it was made."""
    if isinstance(value, dict):
        return {k: _decided(v) for k, v in value.items() if k not in _TIMES}
    return [_decided(one) for one in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
