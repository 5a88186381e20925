"""Asks one GPU the questions that can refute what this project claims.

    python scripts/gpu_check.py                    # all stages, into gpu-check/
    python scripts/gpu_check.py obeyed --out DIR   # one of them, into a new folder
    python scripts/gpu_check.py --dry-run          # without a GPU, with stand-ins

Each stage runs in a process of its own, for less than five minutes. Nothing of the
GPU's settings is changed. docs/how-to/gpu-check.md has the method of each.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from gpu_stages.running import run_stage, visible_gpu
from gpu_stages.stage import STAGES, CannotRunError, Request, StageResult, answer
from lagom_jax.cluster import Cluster
from lagom_jax.errors import ClusterError
from lagom_jax.typed_json import FormError

_LONGEST = 280.0
_DRY_SYSTEM = "h100"
_PACKAGES = ("jax", "nvidia-", "cupy-", "nccl4py", "numpy", "lagom_jax")
_ASKED = ("name", "driver_version", "memory.total", "clocks.max.sm")
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
    record = cluster.gpu
    about = {**machine(gpu), "record": f"{record.name}, {record.xla_device_name}"}
    print(f"{about['name']}, compared with the record {about['record']}", flush=True)
    written = out / f"{record.name}.md"
    lines = [f"# {about['name']}\n", *(f"- {n}: {v}" for n, v in about.items()), ""]
    results: dict[str, StageResult] = {}
    for name in STAGES:
        if name in (wanted.stages or STAGES):
            print(f"\n{name} ...", flush=True)
            request = Request(system, wanted.dry_run, wanted.seconds, str(out / name))
            results[name] = run_stage(f"gpu_stages.{name}", request)
            found = [*answer(name, results[name])]
            print(*found, sep="\n", flush=True)
            # After each, as something may end this process.
            lines += found
            written.write_text("\n".join(lines))
    print(f"wrote {written}")
    return results


def gpu_here() -> dict[str, str]:
    """Name, driver and memory of the GPU in use, from the driver.

    Raises:
        CannotRunError: There is none, or no driver.
    """
    if shutil.which("nvidia-smi") is None:
        raise CannotRunError(
            "no nvidia-smi here, so no NVIDIA driver: run this on a machine with a "
            "GPU, or try it with --dry-run"
        )
    query = f"--query-gpu={','.join(_ASKED)}"
    asked = subprocess.run(
        ["nvidia-smi", f"--id={visible_gpu()}", query, "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    )
    words = [word.strip() for word in asked.stdout.split(",")]
    if asked.returncode or len(words) != len(_ASKED):
        answer = (asked.stdout + asked.stderr).strip() or "nothing"
        raise CannotRunError(
            f"nvidia-smi finds no GPU {visible_gpu()}; it says: {answer}"
        )
    return dict(zip(_ASKED, words, strict=True))


def system_of(name: str) -> str:
    """The system that has a GPU, by the name that its driver gives it.

    Raises:
        CannotRunError: There is none, or there are several.
    """
    try:
        return Cluster.of_gpus(name, 1, 1).name.partition(":")[0]
    except ClusterError as error:
        raise CannotRunError(
            f"{error}. Name a system with GPUs like it, as in --gpu=h100"
        ) from error


def machine(gpu: dict[str, str]) -> dict[str, str]:
    """Provenance of results: date, GPU, commit, versions."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    packages = {
        one.name.lower(): one.version
        for one in importlib.metadata.distributions()
        if one.name.lower().startswith(_PACKAGES)
    }
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        **gpu,
        "source": commit.stdout.strip() or "unknown",
        **dict(sorted(packages.items())),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
