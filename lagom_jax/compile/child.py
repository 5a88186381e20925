"""Starting, feeding and ending the process that compiles."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from lagom_jax import processes
from lagom_jax.compile import chatter, partitioning, wire
from lagom_jax.compile.partitioning import PartitioningRule
from lagom_jax.errors import ToolchainError
from xla_flags import FlagError, join, names_dump, split

_WORKER = "lagom_jax.compile.worker"
NO_RULES: Final[Mapping[str, PartitioningRule]] = {}
"""Of a program in which nothing is partitioned by rules of its own."""
PROGRESS: Final = "progress"
"""The key of what a process says before its answer."""
_BEFORE_THE_ANSWER: Final = frozenset((PROGRESS, partitioning.QUESTION))
# A process that has closed its pipe is about to end, and its status says why.
_ENDING_S = 10.0


def _unheard(line: str) -> None:
    pass


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerAnswer:
    """The worker's answer to one request, or the way in which it ended.

    Example:
        >>> WorkerAnswer(None, b"", -9, False, ()).exit_status
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


class Child:
    """A process that compiles, kept for as many requests as it survives.

    One thread at a time may ask it.
    """

    def __init__(self, environment: Mapping[str, str], *words: str) -> None:
        """Starts it.

        Args:
            environment: Its environment variables.
            *words: Its command line, if it is another than the worker.
        """
        # Both end with this object.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        self._heard = 0
        try:
            self._process = subprocess.Popen(
                words or command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                env=environment,
            )
        except BaseException:
            self._stderr.close()
            raise

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """True if the process runs and can be asked again."""
        return self._process.poll() is None

    def ask(
        self,
        header: dict[str, Any],
        payload: bytes,
        *,
        timeout_s: float,
        rules: Mapping[str, PartitioningRule] = NO_RULES,
        progress: Callable[[str], None] = _unheard,
    ) -> WorkerAnswer:
        """Runs one request.

        Args:
            header: The request.
            payload: Bytes that belong to it.
            timeout_s: When to kill the process.
            rules: The rules by which calls of the program are partitioned, which the
                process asks for.
            progress: Called with each line that the process says before its answer.

        Returns:
            What the process answered, or how it ended.
        """
        timed_out, frame = False, None
        try:
            frame = self._exchange(wire.pack(header, payload), timeout_s)
            while frame is not None and not _BEFORE_THE_ANSWER.isdisjoint(frame[0]):
                more = b""
                if PROGRESS in frame[0]:
                    progress(frame[0][PROGRESS])
                else:
                    more = wire.pack(*partitioning.answered(frame[0], rules))
                frame = self._exchange(more, timeout_s)
            if frame is None:
                self._end()
        except TimeoutError:
            timed_out = True
        finally:
            # Ctrl-C arrives here too: the compiler does not listen to it.
            if frame is None:
                self._process.kill()
                self._process.wait()
        self._stderr.seek(self._heard)
        printed = self._stderr.read()
        self._heard += len(printed)
        answer, result = frame if frame is not None else (None, b"")
        return WorkerAnswer(
            answer,
            result,
            self._process.returncode if frame is None else 0,
            timed_out,
            tuple(chatter.meaningful(printed.decode(errors="replace").splitlines())),
        )

    def _exchange(
        self, request: bytes, timeout_s: float
    ) -> tuple[dict[str, Any], bytes] | None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # A process that has ended says so by its status.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(request)
            self._process.stdin.flush()
        return wire.unpack(_Deadline(self._process.stdout.fileno(), timeout_s))

    def _end(self) -> None:
        """Waits for a process that is about to end by itself."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_ENDING_S)

    def kill(self) -> None:
        """Ends it, even while it is asked by another thread, which hears of it."""
        self._process.kill()

    def close(self) -> None:
        """Ends it for good."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            # What could not be written any more does not matter.
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()


class _Deadline:
    """A pipe that is read until a moment, and no longer."""

    def __init__(self, descriptor: int, seconds: float) -> None:
        self._descriptor = descriptor
        self._end = time.monotonic() + seconds

    def read(self, size: int) -> bytes:
        """As many bytes as asked for, or fewer where the pipe ends.

        Raises:
            TimeoutError: They have not all come in time.
        """
        parts: list[bytes] = []
        while size > 0:
            left = max(0.0, self._end - time.monotonic())
            if not select.select([self._descriptor], [], [], left)[0]:
                raise TimeoutError
            part = os.read(self._descriptor, min(size, 1 << 20))
            if not part:
                break
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def ask_once(
    header: dict[str, Any], payload: bytes, *, timeout_s: float
) -> WorkerAnswer:
    """Runs one request in a process of its own.

    Args:
        header: The request.
        payload: Bytes that belong to it.
        timeout_s: When to kill the process.
    """
    child = Child(environment())
    try:
        return child.ask(header, payload, timeout_s=timeout_s)
    finally:
        child.close()


def command() -> list[str]:
    """The command line of the worker, on this very interpreter."""
    if not sys.executable:
        raise ToolchainError(
            "this Python does not know its own executable (it is embedded in another "
            "program), so no process can be started to compile in: run lagom_jax from "
            "a plain python."
        )
    return processes.python("-m", _WORKER, str(os.getpid()))


def environment(cuda_root: Path | None = None) -> dict[str, str]:
    """The user's environment, and what only the child may have.

    `XLA_FLAGS` goes along, since it would reach the real compiler too, but
    for what makes the compiler write files: those of the user's program lie there.

    Args:
        cuda_root: Where CUDA's tools are, if not where jax finds them.
    """
    # As jax has it: without that every start is logged.
    log_level = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1")
    own = {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": log_level}
    with contextlib.suppress(FlagError):
        settings, _ = split(os.environ.get("XLA_FLAGS", ""))
        kept = [(name, value) for name, value in settings if not names_dump(name)]
        if len(kept) < len(settings):
            own["XLA_FLAGS"] = join(kept)
    if cuda_root is not None:
        own["CUDA_ROOT"] = str(cuda_root)
    return processes.environment(**own)


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
