"""As much of nccl4py as the stages call.

It asks the real tuner plugin as NCCL does, does what that says, and writes what it did
as NCCL writes it: with rings and trees only, as on one GPU, unless the buffers of a
call lie in symmetric windows.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
import math
import os
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from gpu_stages.standin.cupy import GPU, Array, Stream, Work, number, zeros
from lagom_jax.nccl_plugin import library
from lagom_jax.nccl_plugin.control import VARIABLE
from lagom_jax.nccl_plugin.installed import PLUGIN
from lagom_jax.nccl_plugin.rules import FUNCTIONS, Answer
from lagom_jax.plan.setting import PROTOCOLS

SUM: Final = 0
empty: Final = zeros
"""Memory of NCCL's own is like any other here."""
CTAPolicy: Final = int
NCCLConfig: Final = types.SimpleNamespace
"""Channels and policy of a communicator."""
_NAMES: Final = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
_PARTED, _ROOTED = ("all-gather", "reduce-scatter"), ("broadcast", "reduce")
_CHANNEL_BYTES_PER_S: Final = 5e9
_STEP_SECONDS: Final = 4e-6
_USUAL_CHANNELS: Final = 8
# The policy that leaves all SMs to kernels.
_ZERO: Final = 2
_QUEUED: Final[list[tuple[Communicator, str, int, Stream, bool]]] = []
_COUNT: Final = itertools.count(1)
# The plugin stays loaded as long as the process.
_OPEN: Final = contextlib.ExitStack()


class WindowFlag(enum.IntFlag):
    """Kinds of windows."""

    COLL_SYMMETRIC = 1


def get_version() -> Any:
    """The release, which `STANDIN_NCCL` may set."""
    release = os.environ.get("STANDIN_NCCL", "2.32.3")
    return types.SimpleNamespace(libnccl=types.SimpleNamespace(version=release))


def get_unique_id() -> None:
    """No name: there is one communicator."""


@contextlib.contextmanager
def group() -> Iterator[None]:
    """Runs the calls of the block together, one for each rank."""
    yield
    if not _QUEUED:
        return
    # All ranks have to do the same, or they would wait for each other for ever.
    ((nbytes, channels),) = {
        (nbytes, one.channels(function, nbytes, in_windows))
        for one, function, nbytes, _, in_windows in _QUEUED
    }
    seconds = _STEP_SECONDS + nbytes / (channels * _CHANNEL_BYTES_PER_S)
    work = Work(seconds, len(_QUEUED), next(_COUNT) >= number("HANGS", math.inf))
    for *_, stream, _in_windows in _QUEUED:
        GPU.push(stream.tasks, work)
    _QUEUED.clear()


class Communicator:
    """One rank of a communicator."""

    def __init__(self, nranks: int, rank: int, config: Any) -> None:
        self._ranks, self._rank, self._most = nranks, rank, config.max_ctas
        self._copies = config.cta_policy == _ZERO
        self._windows: list[Array] = []
        tuner = _OPEN.enter_context(
            library.opened(Path(os.environ[PLUGIN]), {VARIABLE: os.environ[VARIABLE]})
        )
        self._write(f"TUNER/Plugin: Using {tuner.name.decode()} (v6)")
        self._plugin = library.Communicator(tuner, ranks=nranks, hosts=1, domains=1)
        self._write_table()

    @classmethod
    def init(cls, nranks: int, rank: int, unique_id: None, config: Any) -> Communicator:
        """Makes a rank.

        Raises:
            RuntimeError: Ranks may not share a GPU.
        """
        if os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") != "1":
            raise RuntimeError("Duplicate GPU detected")
        return cls(nranks, rank, config)

    def broadcast(
        self, sendbuf: Array, recvbuf: Array, root: int, *, stream: Stream
    ) -> None:
        """Queues a broadcast."""
        self._queue("broadcast", stream, sendbuf, recvbuf)

    def reduce(
        self, sendbuf: Array, recvbuf: Array, op: int, root: int, *, stream: Stream
    ) -> None:
        """Queues a reduction."""
        self._queue("reduce", stream, sendbuf, recvbuf)

    def allgather(self, sendbuf: Array, recvbuf: Array, *, stream: Stream) -> None:
        """Queues an all-gather."""
        assert recvbuf.size == sendbuf.size * self._ranks
        self._queue("all-gather", stream, sendbuf, recvbuf)

    def reduce_scatter(
        self, sendbuf: Array, recvbuf: Array, op: int, *, stream: Stream
    ) -> None:
        """Queues a reduce-scatter."""
        assert sendbuf.size == recvbuf.size * self._ranks
        self._queue("reduce-scatter", stream, sendbuf, recvbuf)

    def allreduce(
        self, sendbuf: Array, recvbuf: Array, op: int, *, stream: Stream
    ) -> None:
        """Queues an all-reduce."""
        self._queue("all-reduce", stream, sendbuf, recvbuf)

    def register_window(self, buffer: Array, flags: WindowFlag) -> None:
        """Makes a window of a buffer, unless `STANDIN_WINDOWLESS` is set."""
        assert flags == WindowFlag.COLL_SYMMETRIC
        if "STANDIN_WINDOWLESS" not in os.environ:
            self._windows.append(buffer.whole)

    def get_async_error(self) -> int:
        """No error."""
        return 0

    def abort(self) -> None:
        """Ends it."""

    def channels(self, function: str, nbytes: int, in_windows: bool) -> int:
        """The channels that a call runs with; rank 0 writes down how it runs."""
        name = _NAMES[FUNCTIONS.index(function)]
        if in_windows:
            how = f"[Symmetric]: {nbytes} Bytes -> Kernel {name}_LL nchannels 2"
            if function == "all-gather" and self._copies:
                how = f"[Copy Engine]: {nbytes} Bytes -> cudaMemcpy"
            self._write(f"{name} {how}")
            return 2
        answer = self._answer(function, nbytes)
        algorithm, protocol = answer.algorithm or "ring", answer.protocol or "simple"
        channels = min(answer.channels or _USUAL_CHANNELS, self._most)
        buffers = os.environ.get("NCCL_BUFFSIZE") if protocol == "simple" else None
        most = int(buffers or 4 << 20) // 8
        if algorithm == "ring" and function not in _ROOTED:
            most *= 4
        if answer.chunk_bytes and answer.chunk_bytes > most:
            cut = f"{answer.chunk_bytes} exceeds buffer max {most}, clamping"
            self._write(f"{name}: tuner chunk size {cut}")
        self._write(
            f"{name}: {nbytes} Bytes -> Algo {algorithm.upper()} proto "
            f"{protocol.upper()} channel{{Lo..Hi}}={{0..{channels - 1}}}"
        )
        return channels

    def _answer(self, function: str, nbytes: int) -> Answer:
        """The plugin's, unless `STANDIN_DISOBEYS` names the function."""
        if os.environ.get("STANDIN_DISOBEYS") == function:
            return Answer()
        algorithms = ("ring", "tree") if function == "all-reduce" else ("ring",)
        offered = [*itertools.product(algorithms, PROTOCOLS)]
        all_bytes = nbytes * (self._ranks if function in _PARTED else 1)
        if function not in _ROOTED:
            # As from 2.32 on: a question about kernels of symmetric memory.
            self._plugin.ask(function, all_bytes, possible=())
        return self._plugin.ask(function, all_bytes, possible=offered) or Answer()

    def _queue(self, function: str, stream: Stream, *buffers: Array) -> None:
        in_windows = function not in _ROOTED and all(
            one.whole in self._windows for one in buffers
        )
        nbytes = 4 * min(one.size for one in buffers)
        _QUEUED.append((self, function, nbytes, stream, in_windows))

    def _write_table(self) -> None:
        self._write(f"{self._most} coll channels, 0 nvls channels")
        self._write(f"  Algorithm   |{'Tree':>40} |{'Ring':>40} |")
        for name in _NAMES:
            trees = 24.0 if name == "AllReduce" else -1.0
            cells = " ".join(
                f"{math.copysign(5.0, rate):8.1f}/{rate:6.1f} |"
                for rate in [trees] * 3 + [24.0] * 3
            )
            self._write(f"{name:>13} |{cells}")

    def _write(self, line: str) -> None:
        if self._rank == 0:
            with Path(os.environ["NCCL_DEBUG_FILE"]).open("a") as log:
                log.write(f"standin:{os.getpid()}:1 [0] NCCL INFO {line}\n")
