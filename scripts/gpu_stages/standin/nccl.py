"""As much of nccl4py as the stages call.

It asks the real tuner plugin as NCCL does, does what that says, and writes what it did
as NCCL writes it. Ranks of other processes are taken to arrive at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import os
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from gpu_stages.standin.clock import GPU, Collective, Part
from gpu_stages.standin.cupy import Array, Stream
from lagom_jax.plan.setting import CHUNK_GRAIN, PAYLOAD, PROTOCOLS
from lagom_jax.tuner import library
from lagom_jax.tuner.control import VARIABLE
from lagom_jax.tuner.installed import PLUGIN
from lagom_jax.tuner.rules import ALGORITHMS, FUNCTIONS, Answer

SUM: Final = 0
_NAMES: Final = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
_TITLES: Final = (
    *("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"),
)
_PARTED: Final = ("all-gather", "reduce-scatter")
_LEAST_TRAFFIC: Final = 32 << 10
_CHANNEL_BYTES_PER_S, _ALL_BYTES_PER_S = 14e9, 9e11
_STEP_SECONDS: Final = 4e-6
_EFFICIENCY: Final = {"ll": 0.25, "ll128": 0.9, "simple": 1.0}
_USUAL_CHANNELS: Final = 8


class NCCLError(Exception):
    """NCCL refuses a call."""


@dataclasses.dataclass(frozen=True)
class UniqueId:
    """The name of a communicator."""

    name: bytes

    def __bytes__(self) -> bytes:
        return self.name

    @staticmethod
    def from_bytes(b: bytes) -> UniqueId:
        """The name that bytes hold."""
        return UniqueId(b)


@dataclasses.dataclass(frozen=True)
class NCCLConfig:
    """Channels of a communicator."""

    min_ctas: int
    max_ctas: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Call:
    function: str
    nbytes: int
    """Of a rank's part."""
    stream: Stream


@dataclasses.dataclass(frozen=True, slots=True)
class _Decision:
    algorithm: str
    protocol: str
    channels: int
    chunk: int


_COUNT: Final = itertools.count()
_QUEUED: Final[list[tuple[Communicator, _Call]]] = []
# The plugin stays loaded as long as the process.
_OPEN: Final = contextlib.ExitStack()


def get_version() -> Any:
    """The release, which `STANDIN_NCCL` may set."""
    release = os.environ.get("STANDIN_NCCL", "2.32.3")
    return types.SimpleNamespace(libnccl=types.SimpleNamespace(version=release))


def get_unique_id() -> UniqueId:
    """A new name."""
    return UniqueId(f"{next(_COUNT)} of {os.getpid()}".encode().ljust(128, b"\0"))


@contextlib.contextmanager
def group() -> Iterator[None]:
    """Runs the calls of the block together, one for each rank of this process."""
    yield
    if not _QUEUED:
        return
    calls = [(one, call, one.decide(call)) for one, call in _QUEUED]
    _QUEUED.clear()
    first, call, decision = calls[0]
    assert {found for _, _, found in calls} == {decision}
    collective = first.collective(call, decision, len(calls))
    for _, call, _ in calls:
        GPU.push(call.stream.tasks, Part(collective))


class Communicator:
    """One rank of a communicator."""

    _here: Final[dict[bytes, int]] = {}

    def __init__(self, nranks: int, rank: int, channels: int) -> None:
        self._ranks, self._rank, self._channels = nranks, rank, channels
        self._hosts = nranks if os.environ.get("NCCL_HOSTID") else 1
        self._plugin = self._asked_plugin()
        if rank == 0:
            self._write_table()

    @classmethod
    def init(
        cls, nranks: int, rank: int, unique_id: UniqueId, config: NCCLConfig
    ) -> Communicator:
        """Makes a rank.

        Raises:
            NCCLError: Ranks of one host may not share a GPU, or a test wants it.
        """
        if os.environ.get("STANDIN_FAILS") == "init":
            raise NCCLError("init was made to fail")
        here = cls._here[bytes(unique_id)] = cls._here.get(bytes(unique_id), 0) + 1
        if here > 1 and os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") != "1":
            raise NCCLError("Duplicate GPU detected")
        return cls(nranks, rank, config.max_ctas)

    def broadcast(
        self, sendbuf: Array, recvbuf: Array, root: int, *, stream: Stream
    ) -> None:
        """Queues a broadcast."""
        self._queue("broadcast", sendbuf, stream)

    def reduce(
        self,
        sendbuf: Array,
        recvbuf: Array,
        op: int,
        root: int | None = None,
        *,
        stream: Stream,
    ) -> None:
        """Queues a reduction."""
        self._queue("reduce", sendbuf, stream)

    def allgather(self, sendbuf: Array, recvbuf: Array, *, stream: Stream) -> None:
        """Queues an all-gather."""
        assert recvbuf.size == sendbuf.size * self._ranks
        self._queue("all-gather", sendbuf, stream)

    def reduce_scatter(
        self, sendbuf: Array, recvbuf: Array, op: int, *, stream: Stream
    ) -> None:
        """Queues a reduce-scatter."""
        assert sendbuf.size == recvbuf.size * self._ranks
        self._queue("reduce-scatter", recvbuf, stream)

    def allreduce(
        self, sendbuf: Array, recvbuf: Array, op: int, *, stream: Stream
    ) -> None:
        """Queues an all-reduce."""
        self._queue("all-reduce", sendbuf, stream)

    def get_async_error(self) -> int:
        """No error."""
        return 0

    def abort(self) -> None:
        """Ends it."""

    def decide(self, call: _Call) -> _Decision:
        """How a call runs; rank 0 writes it down."""
        function = call.function
        parted = function in _PARTED
        answer = None
        if self._plugin and os.environ.get("STANDIN_DISOBEYS") != function:
            offered = [entry for entry in _entries() if self._offers(function, *entry)]
            nbytes = call.nbytes * (self._ranks if parted else 1)
            answer = self._plugin.ask(function, nbytes, possible=offered)
        answer = answer or Answer()
        algorithm = answer.algorithm or "ring"
        protocol = answer.protocol or "simple"
        channels = min(answer.channels or _USUAL_CHANNELS, self._channels)
        most = _buffer_chunk(function, algorithm, protocol)
        chunk = answer.chunk_bytes or most
        name = _NAMES[FUNCTIONS.index(function)]
        used = self._used(call, protocol, channels)
        if self._rank == 0:
            if chunk > most:
                _write(
                    f"{name}: tuner chunk size {chunk} exceeds buffer max {most}, "
                    "clamping"
                )
            _write(
                f"{name}: {call.nbytes} Bytes -> Algo {algorithm.upper()} proto "
                f"{protocol.upper()} channel{{Lo..Hi}}={{0..{used - 1}}} "
                "cgaClusterSize 4"
            )
        grain = CHUNK_GRAIN[protocol]
        return _Decision(algorithm, protocol, used, min(chunk, most) // grain * grain)

    def collective(self, call: _Call, decision: _Decision, parts: int) -> Collective:
        """What a call takes of the GPU."""
        ranks, sent = self._ranks, float(call.nbytes)
        if call.function in _PARTED:
            sent *= ranks - 1
        if call.function == "all-reduce":
            sent *= 2 * (ranks - 1) / ranks
        rate = decision.channels * _CHANNEL_BYTES_PER_S * _EFFICIENCY[decision.protocol]
        rate *= decision.chunk / (decision.chunk + 65536)
        seconds = _STEP_SECONDS * ranks + sent / min(rate, _ALL_BYTES_PER_S / ranks)
        return Collective(
            seconds,
            parts,
            channels=decision.channels * ranks,
            bytes_in_flight=decision.channels * decision.chunk * ranks,
            bytes_per_s=sent * ranks / seconds,
            hangs=GPU.hangs(),
            reduces_in_full=call.function == "all-reduce"
            and decision.protocol == "simple",
            flag_passes=2 * (1 / PAYLOAD[decision.protocol] - 1),
        )

    def _queue(self, function: str, own: Array, stream: Stream) -> None:
        _QUEUED.append((self, _Call(function, 4 * own.size, stream)))

    def _used(self, call: _Call, protocol: str, channels: int) -> int:
        """Channels that a call is dealt out to, in cells that are worth one."""
        per_byte = 2 if call.function == "all-reduce" else 1
        if call.function in _PARTED:
            per_byte = self._ranks
        per_byte *= 4 if protocol == "ll" else 1
        cell = math.ceil(_LEAST_TRAFFIC / per_byte / 16) * 16
        cells = math.ceil(call.nbytes / cell)
        traffic = max(call.nbytes * per_byte, _LEAST_TRAFFIC)
        share = math.ceil(traffic / channels / 16) * 16
        of_channel = min(math.ceil(share / (cell * per_byte)), cells)
        return math.ceil(cells / of_channel)

    def _offers(self, function: str, algorithm: str, protocol: str) -> bool:
        """As on a GPU without a switch: nothing that only NVLink or a network has."""
        if algorithm == "tree":
            return function == "all-reduce"
        pat = algorithm == "pat" and protocol == "simple" and function in _PARTED
        return algorithm == "ring" or (pat and self._hosts == self._ranks)

    def _asked_plugin(self) -> library.Communicator | None:
        path = os.environ.get(PLUGIN)
        if not path:
            return None
        own = {VARIABLE: os.environ[VARIABLE]}
        tuner = _OPEN.enter_context(library.opened(Path(path), own))
        _write(f"TUNER/Plugin: Using {tuner.name.decode()} (v6)")
        return library.Communicator(
            tuner, ranks=self._ranks, hosts=self._hosts, domains=self._hosts
        )

    def _write_table(self) -> None:
        _write(f"{self._channels} coll channels, 0 nvls channels")
        for first in range(0, len(ALGORITHMS), 3):
            some = range(first, min(first + 3, len(ALGORITHMS)))
            heads = " ".join(f"{'':14}   {_TITLES[a]:>14}   {'':14} |" for a in some)
            _write(f"  Algorithm   |{heads}")
            for name, function in zip(_NAMES, FUNCTIONS, strict=True):
                cells = " ".join(
                    f"{5.0:8.1f}/{24.0 * offered:6.1f} |"
                    for a in some
                    for protocol in PROTOCOLS
                    for offered in (self._offers(function, ALGORITHMS[a], protocol),)
                )
                _write(f"{name:>13} |{cells}")


def _entries() -> Iterator[tuple[str, str]]:
    return itertools.product(ALGORITHMS, PROTOCOLS)


def _buffer_chunk(function: str, algorithm: str, protocol: str) -> int:
    if protocol != "simple":
        return {"ll": 32768, "ll128": 576000}[protocol]
    step = int(os.environ.get("NCCL_BUFFSIZE", 4 << 20)) // 8
    long = algorithm == "ring" and function not in ("broadcast", "reduce")
    return 4 * step if long else step


def _write(line: str) -> None:
    subsystems = os.environ.get("NCCL_DEBUG_SUBSYS", "")
    path = os.environ.get("NCCL_DEBUG_FILE")
    if os.environ.get("NCCL_DEBUG") == "INFO" and "TUNING" in subsystems and path:
        with Path(path).open("a") as log:
            pid = os.getpid()
            log.write(f"standin:{pid}:{pid} [0] NCCL INFO {line}\n")
