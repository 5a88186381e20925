"""As much of nccl4py as the stages call.

It asks the real tuner plugin as NCCL does, does what that says, and writes what it did
as NCCL writes it: with rings and trees only, as on one GPU, unless the buffers of a
call lie in symmetric windows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import os
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from gpu_stages.standin.clock import GPU, Part, Work
from gpu_stages.standin.cupy import Array, Stream, zeros
from lagom_jax.nccl_plugin import library
from lagom_jax.nccl_plugin.control import VARIABLE
from lagom_jax.nccl_plugin.installed import PLUGIN
from lagom_jax.nccl_plugin.rules import FUNCTIONS, Answer
from lagom_jax.plan.setting import PROTOCOLS

SUM: Final = 0
_NAMES: Final = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
_PARTED: Final = ("all-gather", "reduce-scatter")
_CHANNEL_BYTES_PER_S: Final = 5e9
_STEP_SECONDS: Final = 4e-6
_USUAL_CHANNELS: Final = 8
_QUEUED: Final[list[tuple[Communicator, str, int, Stream, bool]]] = []
# The plugin stays loaded as long as the process.
_OPEN: Final = contextlib.ExitStack()


class CTAPolicy(enum.IntFlag):
    """What a communicator spares SMs for."""

    DEFAULT = 0
    EFFICIENCY = 1
    ZERO = 2


class WindowFlag(enum.IntFlag):
    """Kinds of windows."""

    COLL_SYMMETRIC = 1


def empty(shape: int, dtype: Any = float) -> Array:
    """An array in memory of NCCL's own."""
    return zeros(shape, dtype)


@dataclasses.dataclass(frozen=True)
class NCCLConfig:
    """Channels and policy of a communicator."""

    min_ctas: int
    max_ctas: int
    cta_policy: CTAPolicy = CTAPolicy.DEFAULT


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
        (nbytes, one.channels(function, nbytes, off))
        for one, function, nbytes, _, off in _QUEUED
    }
    seconds = _STEP_SECONDS + nbytes / (channels * _CHANNEL_BYTES_PER_S)
    work = Work(seconds, len(_QUEUED), GPU.hangs())
    for *_, stream, _off in _QUEUED:
        GPU.push(stream.tasks, Part(work))
    _QUEUED.clear()


class Communicator:
    """One rank of a communicator."""

    def __init__(self, nranks: int, rank: int, config: NCCLConfig) -> None:
        self._ranks, self._rank, self._most = nranks, rank, config.max_ctas
        self._copies = config.cta_policy == CTAPolicy.ZERO
        self._windows: list[Array] = []
        tuner = _OPEN.enter_context(
            library.opened(Path(os.environ[PLUGIN]), {VARIABLE: os.environ[VARIABLE]})
        )
        _write(f"TUNER/Plugin: Using {tuner.name.decode()} (v6)")
        self._plugin = library.Communicator(tuner, ranks=nranks, hosts=1, domains=1)
        self._write_table()

    @classmethod
    def init(
        cls, nranks: int, rank: int, unique_id: None, config: NCCLConfig
    ) -> Communicator:
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
        self._queue("broadcast", sendbuf, stream)

    def reduce(
        self, sendbuf: Array, recvbuf: Array, op: int, root: int, *, stream: Stream
    ) -> None:
        """Queues a reduction."""
        self._queue("reduce", sendbuf, stream)

    def allgather(self, sendbuf: Array, recvbuf: Array, *, stream: Stream) -> None:
        """Queues an all-gather."""
        assert recvbuf.size == sendbuf.size * self._ranks
        self._queue("all-gather", sendbuf, stream, self._off_rings(sendbuf, recvbuf))

    def reduce_scatter(
        self, sendbuf: Array, recvbuf: Array, op: int, *, stream: Stream
    ) -> None:
        """Queues a reduce-scatter."""
        assert sendbuf.size == recvbuf.size * self._ranks
        off = self._off_rings(sendbuf, recvbuf)
        self._queue("reduce-scatter", recvbuf, stream, off)

    def allreduce(
        self, sendbuf: Array, recvbuf: Array, op: int, *, stream: Stream
    ) -> None:
        """Queues an all-reduce."""
        self._queue("all-reduce", sendbuf, stream, self._off_rings(sendbuf, recvbuf))

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

    def channels(self, function: str, nbytes: int, off_rings: bool) -> int:
        """The channels that a call runs with; rank 0 writes down how it runs."""
        if off_rings:
            return self._beside(function, nbytes)
        answer = None
        if os.environ.get("STANDIN_DISOBEYS") != function:
            offered = [("ring", protocol) for protocol in PROTOCOLS]
            if function == "all-reduce":
                offered += [("tree", protocol) for protocol in PROTOCOLS]
            all_bytes = nbytes * (self._ranks if function in _PARTED else 1)
            answer = self._plugin.ask(function, all_bytes, possible=offered)
        answer = answer or Answer()
        algorithm, protocol = answer.algorithm or "ring", answer.protocol or "simple"
        channels = min(answer.channels or _USUAL_CHANNELS, self._most)
        most, name = (4 << 20) // 8, _NAMES[FUNCTIONS.index(function)]
        if protocol == "simple":
            most = int(os.environ.get("NCCL_BUFFSIZE", 4 << 20)) // 8
        if algorithm == "ring" and function not in ("broadcast", "reduce"):
            most *= 4
        if self._rank == 0:
            if answer.chunk_bytes and answer.chunk_bytes > most:
                _write(
                    f"{name}: tuner chunk size {answer.chunk_bytes} exceeds buffer max "
                    f"{most}, clamping"
                )
            _write(
                f"{name}: {nbytes} Bytes -> Algo {algorithm.upper()} proto "
                f"{protocol.upper()} channel{{Lo..Hi}}={{0..{channels - 1}}} "
                "cgaClusterSize 4"
            )
        return channels

    def _off_rings(self, *buffers: Array) -> bool:
        return all(one.whole in self._windows for one in buffers)

    def _beside(self, function: str, nbytes: int) -> int:
        """Writes down a call without channels, and gives its blocks."""
        name, copied = _NAMES[FUNCTIONS.index(function)], function == "all-gather"
        copied = copied and self._copies
        how = f"Kernel {name}_LL nchannels 2 nthreads 512 nWorks 1"
        if self._rank == 0:
            kind = "Copy Engine" if copied else "Symmetric"
            told = "cudaMemcpy" if copied else how
            _write(f"{name} [{kind}]: {nbytes} Bytes -> {told}")
        return 2

    def _queue(
        self, function: str, own: Array, stream: Stream, off_rings: bool = False
    ) -> None:
        _QUEUED.append((self, function, 4 * own.size, stream, off_rings))

    def _write_table(self) -> None:
        _write(f"{self._most} coll channels, 0 nvls channels")
        _write(f"  Algorithm   |{'Tree':>40} |{'Ring':>40} |")
        for name in _NAMES:
            rates = [24.0 * (name == "AllReduce")] * 3 + [24.0] * 3
            cells = " ".join(f"{5.0:8.1f}/{rate:6.1f} |" for rate in rates)
            _write(f"{name:>13} |{cells}")


def _write(line: str) -> None:
    with Path(os.environ["NCCL_DEBUG_FILE"]).open("a") as log:
        log.write(f"standin:{os.getpid()}:{os.getpid()} [0] NCCL INFO {line}\n")
