"""Runs a stage in a child process that can be ended.

A collective whose ranks disagree waits for ever, and an error of the driver can end its
process; neither may take the other stages' results with it. The child is this module:
`python -m gpu_stages.running MODULE REQUEST`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gpu_stages.stage import CannotRunError, Request, StageResult
from lagom_jax import processes
from lagom_jax.compile.child import signal_name
from lagom_jax.typed_json import plain, typed

# A stage ends itself when its time is over; this is for one that does not.
_GRACE: Final = 20.0
_TIDYING: Final = 5.0
# Settings of the user's other programs.
_FOREIGN: Final = ("LAGOM_", "NCCL_", "JAX_PLATFORMS", "XLA_FLAGS")
_KEPT: Final = "LAGOM_STORE"
_REMARK: Final = "For simplicity, JAX"
_NO_GPU: Final = {
    "JAX_PLATFORMS": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
    # Compilers take nearly all the time of a dry run, which is not about speed.
    "XLA_FLAGS": "--xla_backend_optimization_level=0 "
    "--xla_llvm_disable_expensive_passes=true",
}


class ChildError(Exception):
    """A process failed, or was not done in time."""


def run_stage(module: str, request: Request) -> StageResult:
    """The result of a stage, whatever becomes of its process.

    Args:
        module: Has a function `run`, from a `Request` to an `Outcome`.
        request: Its input; the folder is made here.
    """
    request.path.mkdir(parents=True)
    asked = json.dumps(plain(request))
    begun = time.monotonic()
    child = subprocess.Popen(
        processes.python("-m", "gpu_stages.running", module, asked),
        env={
            name: value
            for name, value in processes.environment().items()
            if name == _KEPT or not name.startswith(_FOREIGN)
        }
        | (_NO_GPU if request.dry else {"CUDA_VISIBLE_DEVICES": visible_gpu()}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        # So that its own children can be ended with it.
        start_new_session=True,
    )
    try:
        how = _how_ended(child.wait(request.seconds + _GRACE))
    except subprocess.TimeoutExpired:
        how = f"was ended, not done after {time.monotonic() - begun:.0f} s"
    finally:
        _end(child)
    if (request.path / "outcome.json").exists():
        return StageResult.read(request.path)
    return StageResult("failed", time.monotonic() - begun, f"its process {how}")


def visible_gpu() -> str:
    """Number of the GPU in use: the first that CUDA may see."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"


def _how_ended(status: int) -> str:
    """The end of a process in words, without a subject.

    Example:
        >>> _how_ended(-9), _how_ended(2)
        ('was ended by SIGKILL', 'ended with status 2')
    """
    if status < 0:
        return f"was ended by {signal_name(status)}"
    return f"ended with status {status}"


def run_all(
    commands: Mapping[Path, list[str]], seconds: float, environment: Mapping[str, str]
) -> None:
    """Runs processes beside each other; where one fails all are ended.

    Args:
        commands: A command line for each, by the file that takes its output.
        seconds: Time limit.
        environment: Variables of all.

    Raises:
        ChildError: One failed, or the time was over.
    """
    logs, children = list(commands), list[subprocess.Popen[bytes]]()
    end = time.monotonic() + seconds
    try:
        for log, words in commands.items():
            with log.open("wb") as output:
                child = subprocess.Popen(
                    words,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            children.append(child)
        while not (failed := [n for n, one in enumerate(children) if one.poll()]):
            if all(one.poll() is not None for one in children):
                return
            if time.monotonic() > end:
                what = f"not done after {seconds:.0f} s"
                raise ChildError(f"{what}: {_last_line(logs[0])}")
            time.sleep(0.05)
        (first, *_) = failed
        what = f"process {first} {_how_ended(children[first].returncode)}"
        raise ChildError(f"{what}: {_last_line(logs[first])}")
    finally:
        for child in children:
            child.kill()
            child.wait()


def _last_line(log: Path, most: int = 400) -> str:
    """The last line of a log; `nothing` where there is none."""
    lines = (line.strip() for line in log.read_text(errors="replace").splitlines())
    # jax ends a traceback with a remark of several lines about itself.
    telling = [one for one in lines if one.strip("-#") and _REMARK not in one]
    return telling[-1][:most] if telling else "nothing"


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ends the child, which may tidy up for a moment, and then its own children."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.terminate()
        child.wait(_TIDYING)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _main(module: str, asked: str) -> None:
    # So that what the stage has started is ended, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    request = typed(Request, json.loads(asked))
    begun = time.monotonic()
    try:
        outcome = importlib.import_module(module).run(request)
        found = StageResult("ran", 0.0, outcome=outcome)
    except CannotRunError as error:
        found = StageResult("cannot run", 0.0, str(error))
    except Exception as error:
        traceback.print_exc()
        found = StageResult("failed", 0.0, f"{type(error).__name__}: {error}")
    seconds = round(time.monotonic() - begun, 1)
    dataclasses.replace(found, seconds=seconds).write(request.path)


if __name__ == "__main__":
    _main(*sys.argv[1:])
