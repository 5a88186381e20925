"""Runs a stage in a child process that can be ended.

A collective whose ranks disagree waits for ever, and an error of the driver can end its
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
from pathlib import Path
from typing import Any, Final

from gpu_stages.host import visible_gpu
from gpu_stages.stage import Request
from lagom_jax import processes
from lagom_jax.compile.child import signal_name

# A stage ends itself when its time is over; this is for one that does not.
_GRACE: Final = 20.0
_TIDYING: Final = 5.0
_LAST_LINES: Final = 12
# Settings of the user's other programs.
_FOREIGN: Final = ("LAGOM_", "NCCL_", "JAX_PLATFORMS", "XLA_FLAGS")
# Compilers take nearly all the time of a dry run, which is not about speed.
_QUICKLY: Final = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)


def run_stage(
    module: str, request: Request, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Runs a stage; its result as it stands in the result file.

    Args:
        module: Has a function `run`, from a `Request` to an `Outcome`.
        request: What it is asked with; the folder is made here.
        progress: Called with each line that the stage reports.
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
    lines, status = _follow(module, request, progress)
    seconds = time.monotonic() - start
    outcome = folder / "outcome.json"
    if outcome.exists():
        found: dict[str, Any] = json.loads(outcome.read_text())
    elif status is None:
        why = f"it was ended: not done after {seconds:.0f} s"
        found = {"status": "failed", "why": why}
    else:
        found = {"status": "failed", "why": f"its process {how_ended(status)}"}
    if found["status"] == "failed":
        found["last_lines"] = lines[-_LAST_LINES:]
    return {**found, "seconds": round(seconds, 1)}


def how_ended(status: int) -> str:
    """The end of a process in words, without a subject.

    Example:
        >>> how_ended(-9), how_ended(2)
        ('was ended by SIGKILL', 'ended with status 2')
    """
    if status < 0:
        return f"was ended by {signal_name(status)}"
    return f"ended with status {status}"


@contextlib.contextmanager
def child_process(words: list[str], environment: dict[str, str], log: Path):
    """A process that is killed with the block, its output in a file.

    Yields:
        The process.
    """
    with log.open("wb") as output:
        child = subprocess.Popen(
            words,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            yield child
        finally:
            child.kill()
            child.wait()


def wait_for(children: list[subprocess.Popen[bytes]], seconds: float) -> list[int]:
    """Waits until all have ended, one has failed, or the time is over.

    Returns:
        The numbers of those that failed.

    Raises:
        TimeoutError: The time is over.
    """
    end = time.monotonic() + seconds
    while any(child.poll() is None for child in children):
        failed = [n for n, child in enumerate(children) if child.poll()]
        if failed:
            return failed
        if time.monotonic() > end:
            raise TimeoutError(f"not done after {seconds:.0f} s")
        time.sleep(0.05)
    return [n for n, child in enumerate(children) if child.poll()]


def last_line(log: Path, most: int = 400) -> str:
    """The last line of a log; `nothing` where there is none.

    Example:
        >>> last_line(Path("no such log"))
        'nothing'
    """
    lines = log.read_text(errors="replace").split("\n") if log.exists() else []
    # jax ends a traceback with a remark of several lines about itself.
    lines = [line.strip() for line in lines if line.strip().strip("-#")]
    lines = [line for line in lines if not line.startswith("For simplicity, JAX")]
    return lines[-1][:most] if lines else "nothing"


def _follow(
    module: str, request: Request, progress: Callable[[str], None]
) -> tuple[list[str], int | None]:
    """The child's lines and exit status; None where it had to be ended."""
    own = (
        {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "", "XLA_FLAGS": _QUICKLY}
        if request.dry
        else {"CUDA_VISIBLE_DEVICES": visible_gpu()}
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
        # So that its own children can be ended with it.
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
            progress(lines[-1])
        child.wait()
    finally:
        timer.cancel()
        _end(child)
        if child.stderr is not None:
            child.stderr.close()
    return lines, None if over.is_set() else child.returncode


def _end(child: subprocess.Popen[str]) -> None:
    """Ends the child, which may tidy up for a moment, and then its own children."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.terminate()
        child.wait(_TIDYING)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
