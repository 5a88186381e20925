"""Asks one GPU the questions that can refute what this project claims.

    python scripts/gpu_check.py --docs --update    # all stages, page, constants
    python scripts/gpu_check.py obeyed --json some.json         # one of them
    python scripts/gpu_check.py --from some.json rest.json --docs
    python scripts/gpu_check.py --dry-run          # without a GPU, with stand-ins

Each stage runs in a process of its own, for less than five minutes. Nothing of the
GPU's settings is changed. docs/validation/README.md has the method of each.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gpu_stages import page
from gpu_stages.clusters import cluster_of
from gpu_stages.host import gpu_here, machine, record_of
from gpu_stages.result import (
    Result,
    ResultError,
    StageResult,
    merged,
    shown,
    update_constants,
)
from gpu_stages.running import run_stage
from gpu_stages.stage import STAGES, CannotRunError, Request

PAGES = Path(__file__).parents[1] / "docs" / "validation"
_LONGEST = 280.0
_DRY_GPU = "h100"


def main(words: Sequence[str]) -> int:
    wanted = _arguments(words)
    try:
        if wanted.results:
            result = merged([Result.read(path) for path in wanted.results])
        else:
            result = _run(wanted, words)
        if wanted.json:
            result.write(wanted.json)
        if wanted.docs:
            if result.dry and wanted.docs == PAGES:
                raise ResultError("a dry run is no validation: name another --docs=DIR")
            for path in page.write(result, wanted.docs):
                print(f"wrote {path}")
        if wanted.update:
            path = update_constants(result)
            print(f"wrote {path}" if path else "no constant was measured: none written")
    except (CannotRunError, ResultError, OSError) as error:
        print(f"gpu_check.py: {error}", file=sys.stderr)
        return 2
    return 0 if all(one.status == "ran" for one in result.stages.values()) else 1


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
    add(
        "--gpu", help="record to compare with, see `lagom clusters`; by default by name"
    )
    add(
        "--seconds",
        type=float,
        default=_LONGEST,
        help=f"time limit of a stage; {_LONGEST:.0f}",
    )
    add(
        "--nccl",
        type=Path,
        metavar="LIBRARY",
        help="another libnccl.so.2 for contention and obeyed",
    )
    add("--keep", type=Path, help="a new folder for logs and tables of all stages")
    add("--json", type=Path, metavar="OUT", help="write the result")
    add(
        "--from",
        dest="results",
        type=Path,
        nargs="+",
        metavar="JSON",
        help="take earlier results of one machine instead of measuring",
    )
    add(
        "--docs",
        type=Path,
        nargs="?",
        const=PAGES,
        metavar="DIR",
        help="write the page, into docs/validation if no folder is named",
    )
    add("--update", action="store_true", help="write measured constants into records")
    wanted = arguments.parse_args(words)
    unknown = [name for name in wanted.stages if name not in STAGES]
    if unknown:
        arguments.error(f"no stage {unknown[0]!r}; there are {', '.join(STAGES)}")
    if not wanted.seconds > 0:
        arguments.error(f"--seconds={wanted.seconds:g}: a stage needs some")
    if wanted.results and (wanted.stages or wanted.dry_run):
        arguments.error("--from measures nothing: name no stage and no --dry-run")
    if wanted.nccl and not wanted.nccl.is_file():
        arguments.error(f"--nccl={wanted.nccl} is no file")
    if wanted.update and wanted.dry_run:
        arguments.error("a dry run measures nothing that --update could write")
    return wanted


def _run(wanted: argparse.Namespace, words: Sequence[str]) -> Result:
    gpu = {"name": "no GPU: a dry run"} if wanted.dry_run else gpu_here()
    record = wanted.gpu or (_DRY_GPU if wanted.dry_run else record_of(gpu["name"]))
    cluster_of(record)  # An unknown record is refused before anything runs.
    about = machine(["python", "scripts/gpu_check.py", *words], gpu)
    if wanted.dry_run:
        print("A dry run: stand-ins take the GPU's place, and figures mean nothing.")
    print(f"{about['name']}, compared with the record '{record}'", flush=True)
    chosen = [one for one in STAGES if one in (wanted.stages or STAGES)]
    there = [name for name in chosen if wanted.keep and (wanted.keep / name).exists()]
    if there:
        raise CannotRunError(f"{wanted.keep / there[0]} is there: name another --keep")
    found: dict[str, StageResult] = {}
    result = Result(record, wanted.dry_run, about, found)
    with tempfile.TemporaryDirectory(prefix="gpu_check-") as temporary:
        folder = wanted.keep or Path(temporary)
        for name in chosen:
            print(f"\n{name}: {STAGES[name].text}", flush=True)
            request = Request(
                record, wanted.dry_run, wanted.seconds, folder / name, wanted.nccl
            )
            found[name] = StageResult.read(
                run_stage(f"gpu_stages.{name}", request, _progress)
            )
            _show(name, found[name])
            if wanted.json:
                # Nothing is lost where something ends this process.
                result.write(wanted.json)
    return result


def _progress(line: str) -> None:
    print(f"    {line}", file=sys.stderr, flush=True)


def _show(name: str, stage: StageResult) -> None:
    print(f"  {stage.verdict} ({stage.status} in {stage.seconds:.0f} s)")
    if stage.why:
        print(f"  {stage.why}")
    if stage.verdict == "refuted":
        print(f"  {STAGES[name].if_refuted}")
    for check in stage.checks:
        met = {None: "", True: "  met", False: "  MISSED"}[check.met]
        print(f"  {check.what}: {shown(check.value, check.unit)}{met}")
    for heading, lines in (("!", stage.findings), ("left out:", stage.left_out)):
        for line in lines:
            print(f"  {heading} {line}")
    for constant, value in stage.constants.items():
        print(f"  measured {constant} = {value}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
