"""Asks one GPU the questions that can refute what this project claims.

    python scripts/gpu_check.py                    # all stages, into gpu-check/
    python scripts/gpu_check.py obeyed --out DIR   # one of them, into a new folder
    python scripts/gpu_check.py --dry-run          # without a GPU, with stand-ins

Each stage runs in a process of its own, for less than five minutes. Nothing of the
GPU's settings is changed. docs/how-to/gpu-check.md has the method of each.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from gpu_stages import page
from gpu_stages.host import gpu_here, machine, system_of
from gpu_stages.running import run_stage
from gpu_stages.stage import STAGES, CannotRunError, Request, StageResult
from lagom_jax.cluster import Cluster
from lagom_jax.errors import ClusterError
from lagom_jax.typed_json import FormError

_LONGEST = 280.0
_DRY_SYSTEM = "h100"
_DRY = "No GPU: a dry run, whose figures mean nothing"


def main(words: Sequence[str]) -> int:
    """Runs stages; the exit status of the command."""
    try:
        results = _run(_arguments(words))
    except (CannotRunError, ClusterError, FormError, OSError) as error:
        print(f"gpu_check.py: {error}", file=sys.stderr)
        return 2
    return 0 if all(one.status == "ran" for one in results.values()) else 1


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    stages = "\n".join(f"  {name:<12} {one.text}" for name, one in STAGES.items())
    arguments = argparse.ArgumentParser(
        description=__doc__,
        epilog=f"stages:\n{stages}\n\nExit status: 0 if all stages ran, whatever their "
        "verdict; 1 if one did not;\n2 if nothing could be done.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = arguments.add_argument
    add("stages", nargs="*", metavar="STAGE", help="all of them, if none is named")
    add("--dry-run", action="store_true", help="with stand-ins for GPU and NCCL")
    add("--gpu", help="system with such a GPU; by default by the GPU's name")
    add("--seconds", type=float, default=_LONGEST, help="time limit of a stage; 280")
    add(
        "--out",
        type=Path,
        default=Path("gpu-check"),
        help="new folder for the page, logs and tables of stages; gpu-check",
    )
    wanted = arguments.parse_args(words)
    unknown = [name for name in wanted.stages if name not in STAGES]
    if unknown:
        arguments.error(f"no stage {unknown[0]!r}; there are {', '.join(STAGES)}")
    if not wanted.seconds > 0:
        arguments.error(f"--seconds={wanted.seconds:g}: a stage needs some")
    return wanted


def _run(wanted: argparse.Namespace) -> dict[str, StageResult]:
    """Results of all stages that were asked for."""
    gpu = {"name": _DRY} if wanted.dry_run else gpu_here()
    system = wanted.gpu or (_DRY_SYSTEM if wanted.dry_run else system_of(gpu["name"]))
    cluster = Cluster.parse(f"{system}:1x1")  # One that is unknown is refused here.
    out: Path = wanted.out.resolve()
    if out.exists():
        raise CannotRunError(f"{wanted.out} is there: name another --out")
    out.mkdir(parents=True)
    about = {**machine(gpu), "record": cluster.gpu.name}
    print(f"{about['name']}, compared with the record '{about['record']}'", flush=True)
    written = out / f"{about['record']}.md"
    results: dict[str, StageResult] = {}
    for name in STAGES:
        if name in (wanted.stages or STAGES):
            print(f"\n{name} ...", flush=True)
            request = Request(system, wanted.dry_run, wanted.seconds, str(out / name))
            results[name] = run_stage(f"gpu_stages.{name}", request)
            print(*page.answer(name, results[name], cluster.name), sep="\n", flush=True)
            # After each, as something may end this process.
            page.write(written, about, results, cluster.name)
    print(f"wrote {written}")
    return results


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
