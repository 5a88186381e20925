"""Starting, feeding and ending the process that compiles."""

from __future__ import annotations

import dataclasses
import io
import os
import signal
import subprocess
import sys
import tempfile
from typing import Any

from lagom_jax import processes
from lagom_jax.compile import chatter, wire
from lagom_jax.errors import ToolchainError

_WORKER = "lagom_jax.compile.worker"


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What became of one request.

    Example:
        >>> Answer(None, b"", -9, False, ()).exit_status
        -9
    """

    header: dict[str, Any] | None
    """The worker's answer; None if it ended without one."""
    payload: bytes = dataclasses.field(repr=False)
    exit_status: int
    """As `subprocess` counts: negative for a signal."""
    timed_out: bool
    printed: tuple[str, ...]
    """The meaningful lines of its stderr."""


def ask_once(header: dict[str, Any], payload: bytes, *, timeout_s: float) -> Answer:
    """Runs one request in a process of its own.

    Calls do not share anything, so several threads may call this at once.

    Args:
        header: The request.
        payload: Bytes that belong to it.
        timeout_s: When to kill the process.

    Returns:
        What the process answered, or how it ended.
    """
    with tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(
            command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=environment(),
        )
        timed_out, answered = False, b""
        try:
            answered, _ = process.communicate(
                wire.pack(header, payload), timeout=timeout_s
            )
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            # Ctrl-C arrives here too: the compiler does not listen to it.
            if process.poll() is None:
                process.kill()
                process.communicate()
        stderr.seek(0)
        printed = stderr.read().decode(errors="replace").splitlines()
    frame = wire.unpack(io.BytesIO(answered))
    answer, result = frame if frame is not None else (None, b"")
    return Answer(
        answer,
        result,
        process.returncode,
        timed_out,
        tuple(chatter.meaningful(printed)),
    )


def command() -> list[str]:
    """The command line of the worker, on this very interpreter."""
    if not sys.executable:
        raise ToolchainError(
            "this Python does not know its own executable (it is embedded in another "
            "program), so no process can be started to compile in: run lagom_jax from "
            "a plain python."
        )
    return processes.python("-m", _WORKER, str(os.getpid()))


def environment() -> dict[str, str]:
    """The user's environment, and what only the child may have.

    The plugin's start-up looks for all of CUDA's libraries unless jax is told to stay
    on the CPU. `XLA_FLAGS` goes along: it would reach the real compiler too.
    """
    return processes.environment(JAX_PLATFORMS="cpu", CUDA_VISIBLE_DEVICES="")


def signal_name(exit_status: int) -> str:
    """The name of the signal that ended a process.

    Example:
        >>> signal_name(-8)
        'SIGFPE'
    """
    try:
        return signal.Signals(-exit_status).name
    except ValueError:
        return f"signal {-exit_status}"
