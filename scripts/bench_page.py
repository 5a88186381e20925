"""Measures how long pages and traces of long programs take, and how large they are.

    python scripts/bench_page.py [--instructions N ...]

The programs are those of `bench_analysis.py`: llama-3-8b's training step with all 32
layers written out, FSDP over 64 devices, and copies of it one after another. Times are
CPU seconds of one process; reading the module is told apart from what comes after.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench_analysis import CLUSTER, compile_real, copies_of


def measure(module: bytes, folder: Path) -> dict[str, Any]:
    """Seconds of each part, and sizes of what was written."""
    from lagom_jax.api import report_scheduled
    from lagom_jax.cluster import Cluster
    from lagom_jax.hlo import read_module
    from lagom_jax.report.page import write_page
    from lagom_jax.report.perfetto import write_trace
    from lagom_jax.report.story import Story
    from lagom_jax.scheduled import Scheduled

    clock = [time.process_time()]
    read = read_module(module)
    clock.append(time.process_time())
    report = report_scheduled(Scheduled(read, Cluster.parse(CLUSTER), "a step"))
    clock.append(time.process_time())
    page, trace = folder / "page.html", folder / "trace.json.gz"
    write_page(Story(report), page)
    clock.append(time.process_time())
    write_trace(trace, report)
    clock.append(time.process_time())
    parts = [after - before for before, after in itertools.pairwise(clock)]
    return {
        "instructions": read.instruction_count,
        "collectives": len(report.collectives),
        **dict(zip(("read", "report", "page", "trace"), parts, strict=True)),
        "page_bytes": page.stat().st_size,
        "trace_bytes": trace.stat().st_size,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instructions", type=int, nargs="*", default=[])
    parser.add_argument("--keep", type=Path, help="a folder for the last files")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = arguments.keep or Path(made)
        folder.mkdir(exist_ok=True)
        real = Path(made) / "real.pb"
        compile_real(real)
        modules = [real.read_bytes()]
        modules += [copies_of(modules[0], size) for size in arguments.instructions]
        for module in modules:
            found = measure(module, folder)
            print(
                *(
                    f"{name} {value:.2f} s"
                    if isinstance(value, float)
                    else f"{name} {value}"
                    for name, value in found.items()
                ),
                sep=", ",
            )


if __name__ == "__main__":
    sys.exit(main())
