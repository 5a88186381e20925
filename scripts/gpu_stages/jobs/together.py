"""Processes that belong together: started at once, and ended at once."""

from __future__ import annotations

import dataclasses
import re
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from gpu_stages.logs import last_words, said
from lagom_jax import processes
from lagom_jax.compile.child import signal_name

_LOOK_AGAIN: Final = 0.2
_ANOTHER_PORT: Final = 3
# What was written, and what it means.
_KNOWN: Final = (
    (
        r"Duplicate GPU detected|Multiple Ranks are using the same GPU",
        "NCCL refuses two processes on one GPU: NCCL 2.30 and newer take them, so "
        "install a newer nvidia-nccl",
    ),
    (
        r"RESOURCE_EXHAUSTED|CUDA_ERROR_OUT_OF_MEMORY|out of memory",
        "the GPU's memory does not suffice: end what else uses the GPU, see nvidia-smi",
    ),
    (
        r"CUDA_ERROR_MPS\w+",
        "CUDA's multi-process service has failed: look at its log in the folder that "
        "--keep names",
    ),
)
_PORT_TAKEN: Final = re.compile(r"[Aa]ddress already in use|Failed to bind|No port")


class TogetherError(Exception):
    """Processes did not come to an end as they should; its text says why."""


class PortTakenError(TogetherError):
    """Another program has taken the port in the meantime."""


@dataclasses.dataclass(frozen=True, slots=True)
class Member:
    """One of the processes."""

    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    """Where all that it prints goes."""


def on_a_free_port(run: Callable[[int], None]) -> None:
    """Runs something that needs a port, on another one where that was taken.

    Args:
        run: Takes the port; raises PortTakenError where it was not free any more.

    Example:
        >>> on_a_free_port(lambda port: None)
    """
    for left in reversed(range(_ANOTHER_PORT)):
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        try:
            run(port)
            return
        except PortTakenError:
            if not left:
                raise


def run_together(members: Sequence[Member], seconds: float) -> None:
    """Runs processes until all of them are done; none outlives the call.

    Args:
        members: The processes.
        seconds: For how long they may run.

    Raises:
        TogetherError: One of them failed, upon which the others were ended, or they
            were not done in time.
    """
    end = time.monotonic() + seconds
    running: list[subprocess.Popen[bytes]] = []
    try:
        running += [_start(member) for member in members]
        while True:
            ended = [process.poll() for process in running]
            if failed := [index for index, status in enumerate(ended) if status]:
                # The first to fail is the one to blame, and it may not be the first in
                # the list; but all that have failed by now did so at nearly once.
                raise _error(members, ended, failed)
            if None not in ended:
                return
            if time.monotonic() > end:
                waiting = [
                    index for index, status in enumerate(ended) if status is None
                ]
                raise TogetherError(
                    f"not done after {seconds:.0f} s, and ended: process "
                    f"{', '.join(map(str, waiting))}; "
                    f"the last it said: {last_words(members[waiting[0]].log)}"
                )
            time.sleep(_LOOK_AGAIN)
    finally:
        for process in running:
            process.kill()
            process.wait()


def _start(member: Member) -> subprocess.Popen[bytes]:
    with member.log.open("wb") as log:
        return subprocess.Popen(
            processes.python(*member.command),
            env=dict(member.environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def _error(
    members: Sequence[Member], ended: Sequence[int | None], failed: Sequence[int]
) -> TogetherError:
    texts = {index: said(members[index].log) for index in failed}
    for index, text in texts.items():
        if _PORT_TAKEN.search(text):
            return PortTakenError(f"process {index}: {last_words(members[index].log)}")
    for pattern, meaning in _KNOWN:
        for index, text in texts.items():
            if found := re.search(pattern, text):
                return TogetherError(f"process {index}: {meaning} ({found[0]})")
    index = failed[0]
    status = ended[index] or 0
    how = signal_name(status) if status < 0 else f"status {status}"
    return TogetherError(
        f"process {index} ended with {how}; the last it said: "
        f"{last_words(members[index].log)}"
    )
