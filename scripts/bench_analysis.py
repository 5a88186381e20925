"""Measures how long reading and analysing a compiled program takes, and its memory.

    python scripts/bench_analysis.py  # prints, and rewrites its page
    python scripts/bench_analysis.py --quick    # the real module only, writes nothing

The real module is llama-3-8b's training step with all 32 layers written out, FSDP over
64 devices. The synthetic ones are copies of its entry one after another, with fused
computations of their own, up to a million instructions. XLA's own share (turning its
module into bytes) is shown apart. Every size is read in a process of its own; times
are CPU seconds of its one thread, medians over its repetitions, and wall beside them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CLUSTER = "h100:8x8"
# The same for every size: the first also pays for memory that the others find ready.
REPETITIONS = 3
SIZES = (45_000, 100_000, 200_000, 400_000, 700_000, 1_000_000)
DOCS = Path(__file__).parent.parent / "docs" / "reference" / "benchmarks"
STAGES = ("read", "program", "report", "table")


def compile_real(
    path: Path, *, scan: bool = False, captured: Path | None = None
) -> dict[str, Any]:
    """Compiles the real module, or that with a loop over the layers, into `path`.

    What XLA's scheduler left, for which orders are made, goes into `captured`.
    """
    from lagom_jax.cluster import Cluster
    from lagom_jax.commands.terminal import import_jax

    import_jax()
    import lagom_models
    from lagom_jax.compile import compile_step, lower

    step = lagom_models.build("llama-3-8b", devices=64, parallelism="fsdp", scan=scan)
    began = time.perf_counter()
    lowered = lower(step.function, *step.arguments)
    lowering = time.perf_counter() - began
    compiled = compile_step(
        lowered, Cluster.parse(CLUSTER), capture=captured is not None
    )
    path.write_bytes(compiled.module_bytes)
    if captured is not None:
        captured.write_bytes(compiled.scheduled_bytes or b"")
    return {
        "lower_seconds": lowering,
        "compile_seconds": compiled.compile_seconds,
        "xla_serialise_seconds": compiled.serialise_seconds,
        "versions": compiled.versions,
    }


def copies_of(data: bytes, instructions: int) -> bytes:
    """A module of about so many instructions: the entry, again and again."""
    from lagom_jax.compile.schema import message_class

    module = message_class("HloModuleProto").FromString(data)
    size = sum(len(c.instructions) for c in module.computations)
    entry = next(c for c in module.computations if c.id == module.entry_computation_id)
    called = [c for c in module.computations if c.id != entry.id]
    order = next(s for s in module.schedule.sequences if s.key == entry.id).value
    highest = max(i.id for c in module.computations for i in c.instructions)
    most = max(c.id for c in module.computations)
    parameters = {i.id for i in entry.instructions if i.opcode == "parameter"}
    template = [i for i in entry.instructions if i.id not in parameters]
    scheduled = [i for i in order.instruction_ids if i not in parameters]
    sequences = {s.key: s.value for s in module.schedule.sequences}
    for copy in range(1, max(1, round(instructions / size))):
        shift, computation_shift = copy * (highest + 1), copy * (most + 1)
        for original in called:
            computation = module.computations.add()
            computation.CopyFrom(original)
            computation.id += computation_shift
            computation.root_id += shift
            for instruction in computation.instructions:
                _renumber(instruction, shift, computation_shift, set(), copy)
            if original.id in sequences:
                added = module.schedule.sequences.add(key=computation.id)
                ids = sequences[original.id].instruction_ids
                added.value.instruction_ids.extend(i + shift for i in ids)
        for original in template:
            instruction = entry.instructions.add()
            instruction.CopyFrom(original)
            _renumber(instruction, shift, computation_shift, parameters, copy)
        order.instruction_ids.extend(i + shift for i in scheduled)
    return module.SerializeToString()


def _renumber(
    instruction: Any, shift: int, computation_shift: int, kept: set[int], copy: int
) -> None:
    instruction.id += shift
    instruction.name += f".copy{copy}"
    for ids in (instruction.operand_ids, instruction.control_predecessor_ids):
        ids[:] = [i if i in kept else i + shift for i in ids]
    called = instruction.called_computation_ids
    called[:] = [i + computation_shift for i in called]


def measure(path: Path, repetitions: int) -> dict[str, Any]:
    """Reads and analyses a module in this process."""
    from lagom_jax.cluster import Cluster
    from lagom_jax.cost.model import CostModel
    from lagom_jax.hlo import read_module
    from lagom_jax.program.build import build_program
    from lagom_jax.report import report_program
    from lagom_jax.report.text import to_text

    cluster = Cluster.parse(CLUSTER)
    prices = CostModel.of(cluster)
    data = path.read_bytes()
    seconds: dict[str, list[float]] = {stage: [] for stage in STAGES}
    wall: list[float] = []
    sizes: dict[str, int] = {"bytes": len(data)}

    for _ in range(repetitions):
        began = time.perf_counter()
        moments = [time.process_time()]
        module = read_module(data)
        moments.append(time.process_time())
        program = build_program(module)
        moments.append(time.process_time())
        report = report_program(program, cluster, prices, pricing="")
        moments.append(time.process_time())
        to_text(report)
        moments.append(time.process_time())
        wall.append(time.perf_counter() - began)
        for stage, (start, end) in zip(
            STAGES, itertools.pairwise(moments), strict=True
        ):
            seconds[stage].append(end - start)
        sizes["instructions"] = module.instruction_count
        sizes["scheduled"] = len(module.entry.sequence or ())
        sizes["collectives"] = len(report.collectives)
        # Two modules of this size need not be in memory at once.
        del module, program, report
    medians = {stage: statistics.median(times) for stage, times in seconds.items()}
    total = [sum(times) for times in zip(*seconds.values(), strict=True)]
    return {
        **sizes,
        **medians,
        "total": statistics.median(total),
        "spread": [min(total), max(total)],
        "wall": statistics.median(wall),
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def in_own_process(path: Path, repetitions: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--measure", str(path), str(repetitions)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def table(real: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    lines = [
        "| instructions | scheduled | collectives | module | read | program | report |"
        " table | total (min-max) | wall | peak memory |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        low, high = row["spread"]
        stages = " | ".join(f"{row[stage]:.2f} s" for stage in STAGES)
        lines.append(
            f"| {row['instructions']:,} | {row['scheduled']:,} | {row['collectives']:,}"
            f" | {row['bytes'] / 1e6:.1f} MB | {stages}"
            f" | {row['total']:.2f} s ({low:.2f}-{high:.2f}) | {row['wall']:.2f} s"
            f" | {row['peak_bytes'] / 1e9:.2f} GB |"
        )
    lines += [
        "",
        f"XLA's share for the first row: {real['xla_serialise_seconds']:.2f} s to turn "
        f"its module into bytes, {real['compile_seconds']:.1f} s to compile it, and "
        f"{real['lower_seconds']:.1f} s of jax's tracing and lowering.",
    ]
    return "\n".join(lines)


def write_docs(real: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    versions = ", ".join(f"{k} {v}" for k, v in sorted(real["versions"].items()))
    per_instruction = [1e6 * row["total"] / row["instructions"] for row in rows]
    DOCS.mkdir(parents=True, exist_ok=True)
    (DOCS / "analysis.md").write_text(
        "# Reading and analysing a compiled program\n\n"
        "Measured by `python scripts/bench_analysis.py` (`make bench`): Python "
        f"{platform.python_version()}, {versions}, on {os.cpu_count()} cores. "
        "Times are CPU seconds of the one thread that works, and `wall` what the clock "
        "said; compare rows, not machines.\n\nThe first row is "
        "llama-3-8b's training step with its 32 layers written out, FSDP over 64 "
        "H100s; the others repeat its entry. "
        "`read` is bytes to instructions, `program` the schedule and the work of every "
        "instruction, `report` pricing, replay and causes.\n\n"
        + table(real, rows)
        + "\n\nThe cost per instruction stays between "
        f"{min(per_instruction):.0f} and {max(per_instruction):.0f} us:\n\n"
        "![seconds over instructions](analysis.svg)\n"
    )
    plot(rows)


def plot(rows: list[dict[str, Any]]) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    # The same drawing gives the same file.
    mpl.rcParams["svg.hashsalt"] = "lagom_jax"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    counts = [row["instructions"] / 1e6 for row in rows]
    axes.plot(counts, [row["total"] for row in rows], "o-", label="total")
    for stage in STAGES[:3]:
        axes.plot(counts, [row[stage] for row in rows], "--", label=stage)
    axes.set(xlabel="million instructions", ylabel="CPU seconds", xlim=0, ylim=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(DOCS / "analysis.svg", metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures reading and analysis.")
    parser.add_argument("--quick", action="store_true", help="the real module only")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.measure:
        path, repetitions = chosen.measure
        print(json.dumps(measure(Path(path), int(repetitions))))
        return
    with tempfile.TemporaryDirectory() as folder:
        real_path = Path(folder) / "real.pb"
        real = compile_real(real_path)
        rows = [in_own_process(real_path, REPETITIONS)]
        print(table(real, rows), flush=True)
        if chosen.quick:
            return
        data = real_path.read_bytes()
        for size in SIZES[1:]:
            path = Path(folder) / f"{size}.pb"
            path.write_bytes(copies_of(data, size))
            rows.append(in_own_process(path, REPETITIONS))
            path.unlink()
            print(table(real, rows).splitlines()[len(rows) + 1], flush=True)
    write_docs(real, rows)


if __name__ == "__main__":
    main()
