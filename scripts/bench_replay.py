"""Measures the replay of a compiled program, and of what-if questions about it.

    python scripts/bench_replay.py           # prints, and rewrites docs/benchmarks/

The program is the real module of `bench_analysis.py`: llama-3-8b's training step with
all 32 layers written out, FSDP over 64 devices. A question is the step under another
setting of one collective. Times are CPU seconds of the one thread that works.
"""

from __future__ import annotations

import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench_analysis import CLUSTER, DOCS, compile_real

from lagom_jax.cluster import Cluster
from lagom_jax.cost.baseline import Baseline
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.replay import replay
from lagom_jax.cost.setting import Setting
from lagom_jax.hlo import read_module
from lagom_jax.hlo.collective import Collective
from lagom_jax.schedule.build import build_program

REPETITIONS = 7
RINGS = ("all-gather", "reduce-scatter", "all-reduce")
FEW = Setting("ring", "simple", 2, 544, 512 << 10)


def seconds(act: Callable[[], object]) -> float:
    began = time.process_time()
    act()
    return time.process_time() - began


def row(what: str, times: list[float]) -> str:
    figures = (statistics.median(times), min(times), max(times))
    median, least, most = (f"{1e3 * figure:.3g}" for figure in figures)
    return f"| {what} | {median} ms | {least}-{most} ms |"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "real.pb"
        versions = compile_real(path)["versions"]
        module = read_module(path.read_bytes())
    program = build_program(module)
    model = CostModel.of(Cluster.parse(CLUSTER))
    alone = [seconds(lambda: replay(program, model)) for _ in range(REPETITIONS)]
    contended = [
        seconds(lambda: replay(program, model, model.contention()))
        for _ in range(REPETITIONS)
    ]
    baseline = Baseline(program, model, model.contention())
    collectives = [found for found, _, _ in program.collectives()]
    questions = [
        _question(baseline, model, collective)
        for collective in collectives
        if collective.kind in RINGS
    ]
    table = "\n".join(
        [
            "| | median | least to most |",
            "|---|--:|--:|",
            row("replay, every task priced anew, no contention", alone),
            row("replay, every task priced anew, with contention", contended),
            row("one collective under another setting", questions),
        ]
    )
    print(table)
    (DOCS / "replay.md").write_text(
        "# Replay\n\n"
        "Measured by `python scripts/bench_replay.py`: Python "
        f"{platform.python_version()}, jax {versions['jax']}, CPU seconds of one "
        f"thread. llama-3-8b's training step with its 32 layers written out, FSDP over "
        f"64 H100s: {module.instruction_count:,} instructions, "
        f"{len(program.body):,} nodes, {len(collectives):,} collectives, of which "
        f"{len(questions):,} were asked about one by one.\n\n{table}\n"
    )


def _question(baseline: Baseline, model: CostModel, collective: Collective) -> float:
    """Seconds to learn the step under another setting of one collective."""
    other = model.under({collective: FEW})
    changed = frozenset({collective})
    return seconds(lambda: baseline.what_if(changed, other, other.contention()))


if __name__ == "__main__":
    main()
