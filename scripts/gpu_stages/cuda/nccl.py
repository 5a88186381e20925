"""Ranks of NCCL on one GPU: all of them in this process, or one in each of several."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from gpu_stages.cuda.binding import CallError, Library, UniqueId
from gpu_stages.cuda.prototypes import value
from gpu_stages.cuda.runtime import Gpu, HungError

T = TypeVar("T")
FIRST_WITH_CHUNKS: Final = 23000
"""The release from which a tuner is asked for chunks."""
_FLOAT: Final = 4
# The structure of 2.18, which every newer release takes.
_CONFIG_VERSION: Final = 21800
_AT_ABORT: Final = 10.0


class _Config(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
        ("cga_cluster_size", ctypes.c_int),
        ("least_blocks", ctypes.c_int),
        ("most_blocks", ctypes.c_int),
        ("net_name", ctypes.c_char_p),
        ("split_share", ctypes.c_int),
    ]


def release(nccl: Library) -> int:
    """NCCL's number of its own release, as 23004 for 2.30.4."""
    found = ctypes.c_int()
    nccl.call("ncclGetVersion", ctypes.byref(found))
    return found.value


def unique_id(nccl: Library) -> bytes:
    """A name for a communicator, for all of its ranks."""
    made = UniqueId()
    nccl.call("ncclGetUniqueId", ctypes.byref(made))
    return bytes(memoryview(made))


class Ranks:
    """The ranks of one communicator that are in this process, all on its GPU."""

    def __init__(
        self,
        gpu: Gpu,
        name: bytes,
        world: int,
        mine: Sequence[int],
        *,
        channels: int,
        most_bytes: int,
        patience: float,
    ) -> None:
        """Makes the communicator, with all other processes that have its ranks.

        Args:
            gpu: What they run on.
            name: From `unique_id`.
            world: Ranks of the communicator.
            mine: Those that are here.
            channels: That the communicator has; calls use as many or fewer.
            most_bytes: Of the largest call, as a tuner counts them.
            patience: Seconds after which it counts as hung.

        Raises:
            HungError: The ranks do not find each other.
            CallError: NCCL does not want to.
        """
        self.world = world
        self.streams = tuple(gpu.stream(urgent=True) for _ in mine)
        self._nccl: Library = gpu.libraries.nccl
        self._patience = patience
        self._sends = [gpu.memory(most_bytes) for _ in mine]
        self._receives = [gpu.memory(most_bytes) for _ in mine]
        self._handles = [ctypes.c_void_p() for _ in mine]

        def connect() -> None:
            unset = value("NCCL_CONFIG_UNDEF_INT")
            config = _Config(
                *(ctypes.sizeof(_Config), value("NCCL_API_MAGIC"), _CONFIG_VERSION),
                *(unset, unset, channels, channels, None, unset),
            )
            self._nccl.call("ncclGroupStart")
            for handle, rank in zip(self._handles, mine, strict=True):
                self._nccl.call(
                    "ncclCommInitRankConfig",
                    *(ctypes.byref(handle), world, UniqueId.from_buffer_copy(name)),
                    *(rank, ctypes.byref(config)),
                )
            self._nccl.call("ncclGroupEnd")

        within(patience, "making a communicator", connect)

    def launch(self, function: str, per_rank: int) -> None:
        """Queues one collective on the stream of each rank.

        Args:
            function: As the rules of the tuner name it.
            per_rank: Bytes, as NCCL counts them: of a rank's own part in an all-gather
                or reduce-scatter, else of the buffer.
        """
        count = per_rank // _FLOAT
        self._nccl.call("ncclGroupStart")
        for send, receive, handle, stream in zip(
            self._sends, self._receives, self._handles, self.streams, strict=True
        ):
            end = (handle, stream.handle)
            number, plus = value("ncclFloat32"), value("ncclSum")
            calls: dict[str, tuple[Any, ...]] = {
                "broadcast": ("ncclBroadcast", number, 0),
                "reduce": ("ncclReduce", number, plus, 0),
                "all-gather": ("ncclAllGather", number),
                "reduce-scatter": ("ncclReduceScatter", number, plus),
                "all-reduce": ("ncclAllReduce", number, plus),
            }
            name, *words = calls[function]
            self._nccl.call(name, send, receive, count, *words, *end)
        self._nccl.call("ncclGroupEnd")

    def launch_first(self, function: str, per_rank: int) -> None:
        """`launch` where NCCL may have to connect the ranks in a new way.

        Raises:
            HungError: They do not get connected.
        """
        what = f"connecting ranks for {function}"
        within(self._patience, what, lambda: self.launch(function, per_rank))

    def check(self) -> None:
        """Asks NCCL for errors of what it has done meanwhile.

        Raises:
            CallError: There was one.
        """
        found = ctypes.c_int()
        for handle in self._handles:
            self._nccl.call("ncclCommGetAsyncError", handle, ctypes.byref(found))
            if found.value:
                reason = self._nccl.status("ncclGetErrorString", found.value)
                raise CallError("a collective", found.value, reason.decode())

    def abort(self) -> None:
        """Gives the communicator up, whatever its ranks are doing.

        Where even that does not end or fails, nothing is left to be done about it, and
        what was measured before stays true.
        """

        def end() -> None:
            for handle in self._handles:
                if handle:
                    self._nccl.call("ncclCommAbort", handle)

        with contextlib.suppress(HungError, CallError):
            within(_AT_ABORT, "aborting the communicators", end)


def within(seconds: float, what: str, do: Callable[[], T]) -> T:
    """What a call returns that may never do so.

    Example:
        >>> within(1.0, "adding", lambda: 1 + 1)
        2

    Raises:
        HungError: It did not in time; it is left behind in a thread of its own.
    """
    returned: list[T] = []
    raised: list[BaseException] = []

    def work() -> None:
        try:
            returned.append(do())
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if raised:
        raise raised[0]
    if not returned:
        raise HungError(f"{what} did not end in {seconds:.0f} s")
    return returned[0]


def per_rank_bytes(function: str, nbytes: int, ranks: int) -> int:
    """What a rank's part is of a call, as NCCL's log counts it.

    Args:
        function: As the rules of the tuner name it.
        nbytes: As a tuner counts them: on the larger side.
        ranks: Of the communicator.

    Example:
        >>> per_rank_bytes("all-gather", 4096, 4), per_rank_bytes("reduce", 4096, 4)
        (1024, 4096)
    """
    parted = function in ("all-gather", "reduce-scatter")
    return nbytes // ranks if parted else nbytes
