"""Runs stages one after the other, each in a child that can be ended.

A collective whose ranks disagree waits for ever, and a driver's error can end its
process; neither may take the other stages' results with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from gpu_stages.host import the_gpu
from gpu_stages.stage import Json, Request
from lagom_jax import processes
from lagom_jax.compile.child import signal_name

# A stage ends itself when its time is over; this is for one that does not.
_GRACE: Final = 20.0
_TIDYING: Final = 5.0
_LAST_LINES: Final = 12
# What is set for other programs is not meant for the stages.
_FOREIGN: Final = ("LAGOM_", "NCCL_", "JAX_PLATFORMS", "XLA_FLAGS")


def run_stage(module: str, request: Request, say: Callable[[str], None]) -> Json:
    """What came of a stage, as it is written to the results.

    Args:
        module: What has its function `run`.
        request: What it is asked; its folder is made here.
        say: Told each line of progress.
    """
    folder = request.folder
    folder.mkdir(parents=True)
    asked: dict[str, Any] = {
        "gpu": request.gpu,
        "dry": request.dry,
        "seconds": request.seconds,
        "nccl": request.nccl and str(request.nccl.resolve()),
    }
    (folder / "request.json").write_text(json.dumps(asked))
    start = time.monotonic()
    lines, ended = _follow(module, request, say)
    seconds = time.monotonic() - start
    outcome = folder / "outcome.json"
    if outcome.exists():
        found: dict[str, Json] = json.loads(outcome.read_text())
    elif ended is None:
        found = {
            "status": "failed",
            "why": f"it was ended: not done after {seconds:.0f} s",
        }
    else:
        found = {"status": "failed", "why": _death(ended)}
    if found["status"] == "failed":
        found["last_lines"] = lines[-_LAST_LINES:]
    return {**found, "seconds": round(seconds, 1)}


def _follow(
    module: str, request: Request, say: Callable[[str], None]
) -> tuple[list[str], int | None]:
    """What the child said, and its exit status; None where it had to be ended."""
    own = (
        {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
        if request.dry
        else {"CUDA_VISIBLE_DEVICES": the_gpu()}
    )
    child = subprocess.Popen(
        processes.python("-m", "gpu_stages.child", module, str(request.folder)),
        env={
            name: value
            for name, value in processes.environment().items()
            if not name.startswith(_FOREIGN)
        }
        | own,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        # So that whatever it starts can be ended with it.
        start_new_session=True,
    )
    over = threading.Event()

    def end_it() -> None:
        over.set()
        _end(child)

    timer = threading.Timer(request.seconds + _GRACE, end_it)
    timer.start()
    lines: list[str] = []
    try:
        assert child.stderr is not None
        for line in child.stderr:
            lines.append(line.rstrip())
            say(lines[-1])
        child.wait()
    finally:
        timer.cancel()
        _end(child)
        if child.stderr is not None:
            child.stderr.close()
    return lines, None if over.is_set() else child.returncode


def _end(child: subprocess.Popen[str]) -> None:
    """Ends the child, which may tidy up for a moment, and then all that it started."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.terminate()
        child.wait(_TIDYING)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _death(status: int) -> str:
    if status < 0:
        return f"its process was ended by {signal_name(status)}"
    return f"its process ended with status {status} and left no result"
