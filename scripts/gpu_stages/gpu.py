"""Streams, events, kernels and ranks of NCCL on the one GPU that a stage uses.

CuPy and nccl4py make the calls; both are imported when a stage starts, so that this
package imports without them. A dry run has stand-ins with the same functions.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import numpy as np

from gpu_stages.stage import CannotRunError, Request
from lagom_jax.hlo.matmul import Matmul
from lagom_jax.plan.transport import POLICY_VALUES, CtaPolicy

T = TypeVar("T")
INSTALL: Final = "pip install 'lagom_jax[gpu-check]'"
FIRST_WITH_SHARED_GPUS: Final = (2, 30)
"""Release of NCCL from which several ranks of one process may use one GPU, and from
which a tuner is asked for chunks."""
TRIAD_BYTES: Final = 12
"""Read and written by the triad for each element."""
_TRIAD: Final = """
extern "C" __global__ void triad(float4 *out, const float4 *one, const float4 *other,
                                 float factor, size_t count) {
  size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  float4 a = one[i], b = other[i];
  out[i] = make_float4(a.x + factor * b.x, a.y + factor * b.y, a.z + factor * b.z,
                       a.w + factor * b.w);
}
"""
# As XLA's loops have it: a block for so many elements, four for each thread.
_THREADS, _PER_THREAD = 256, 4
# CUDA clamps priorities to those that the GPU has; XLA gives NCCL the highest.
_URGENT, _USUAL = -100, 0
# Numbers of cuBLAS: no transposition, bf16, sums in f32, its own choice of a kernel.
_PLAIN, _BF16, _IN_F32, _CHOSEN = 0, 14, 68, -1
# To sleep costs more than most waits last; only after so long it spares a core.
_AWAKE_SECONDS: Final = 0.05
_POLL_SECONDS: Final = 1e-3
_AT_ABORT: Final = 10.0


class HungError(Exception):
    """The GPU or NCCL did not finish in time."""


@dataclasses.dataclass(frozen=True, slots=True)
class Libraries:
    """The modules that make the calls."""

    cupy: Any
    nccl: Any
    """`nccl.core`."""
    windowed: Any
    """`nccl.core.interop.cupy`: arrays of CuPy in NCCL's own memory."""

    @classmethod
    def load(cls, request: Request) -> Libraries:
        """Loads them; the environment must be set before.

        Raises:
            CannotRunError: One is missing.
        """
        if request.dry:
            from gpu_stages.standin import cupy, nccl

            return cls(cupy, nccl, nccl)
        try:
            import cupy  # pyright: ignore[reportMissingImports]
            from nccl import core  # pyright: ignore[reportMissingImports]
            from nccl.core.interop import (  # pyright: ignore[reportMissingImports]
                cupy as windowed,
            )
        except ImportError as error:
            raise CannotRunError(
                f"CuPy and nccl4py are needed ({error}): {INSTALL}"
            ) from None
        return cls(cupy, core, windowed)

    def nccl_release(self) -> tuple[int, ...]:
        """Release of the NCCL that is loaded, as (2, 30, 4).

        Raises:
            CannotRunError: There is none.
        """
        library = self.nccl.get_version().libnccl
        if library is None:
            raise CannotRunError(f"no NCCL here: {INSTALL}")
        return tuple(int(part) for part in str(library.version).split("."))

    def release_name(self) -> str:
        """The same as text: 2.30.4."""
        return ".".join(map(str, self.nccl_release()))


class Gpu:
    """The GPU of this process."""

    def __init__(self, libraries: Libraries, patience: float) -> None:
        """Starts CUDA.

        Raises:
            CannotRunError: There is no GPU.
        """
        self.libraries = libraries
        # In seconds: what is waited for longer counts as hung.
        self.patience = patience
        self._cupy = libraries.cupy
        try:
            count = self._cupy.cuda.runtime.getDeviceCount()
        except Exception as error:
            raise CannotRunError(f"CUDA does not start: {error}") from error
        if not count:
            raise CannotRunError("CUDA sees no GPU: run this on a machine with one")
        device = self._cupy.cuda.Device(0)
        device.use()
        self.sm_count: int = device.attributes["MultiProcessorCount"]

    def stream(self, *, urgent: bool) -> Any:
        """A new stream; blocks of an urgent one are placed first, as NCCL's by XLA."""
        priority = _URGENT if urgent else _USUAL
        return self._cupy.cuda.Stream(non_blocking=True, priority=priority)

    def zeros(self, nbytes: int) -> Any:
        """An array of zeros in f32, ready for any stream."""
        array = self._cupy.zeros(nbytes // 4, np.float32)
        self._cupy.cuda.runtime.deviceSynchronize()
        return array

    def window(self, nbytes: int) -> Any:
        """An array of f32 in memory of NCCL's own, which can become a window."""
        array = self.libraries.windowed.empty(nbytes // 4, np.float32)
        self._cupy.cuda.runtime.deviceSynchronize()
        return array

    def record(self, stream: Any) -> Any:
        """A new event, reached when the stream has done its work so far."""
        event = self._cupy.cuda.Event()
        event.record(stream)
        return event

    def timed(self, stream: Any, queue: Callable[[], None]) -> tuple[Any, Any]:
        """Events before and after what a function queues on a stream."""
        start = self.record(stream)
        queue()
        return start, self.record(stream)

    def wait(self, event: Any) -> None:
        """Returns when an event is reached.

        Raises:
            HungError: It is not, for too long.
        """
        start = time.monotonic()
        while not event.done:
            waited = time.monotonic() - start
            if waited > self.patience:
                raise HungError(f"the GPU is not done after {self.patience:.0f} s")
            if waited > _AWAKE_SECONDS:
                time.sleep(_POLL_SECONDS)

    def finish(self, *streams: Any) -> None:
        """Returns when streams have done all their work."""
        for stream in streams:
            self.wait(self.record(stream))

    def seconds(self, start: Any, end: Any) -> float:
        """Time between two events that are reached."""
        return self._cupy.cuda.get_elapsed_time(start, end) * 1e-3

    def matmul(self, stream: Any, product: Matmul) -> Callable[[], None]:
        """A function that launches a product of bf16 with cuBLAS."""
        blas = self._cupy.cuda.cublas
        handle = blas.create()
        blas.setStream(handle, stream.ptr)
        m, n, k = product.m, product.n, product.k
        lhs, rhs, out = (self.zeros(2 * size) for size in (m * k, k * n, m * n))
        one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)

        def launch() -> None:
            # cuBLAS counts by columns: rows of the product are columns of its
            # transpose, the operands change places.
            blas.gemmEx(
                *(handle, _PLAIN, _PLAIN, n, m, k, one.ctypes.data),
                *(rhs.data.ptr, _BF16, n, lhs.data.ptr, _BF16, k, zero.ctypes.data),
                *(out.data.ptr, _BF16, n, _IN_F32, _CHOSEN),
            )

        return launch

    def triad(self, stream: Any, elements: int) -> Callable[[], None]:
        """A function that launches a kernel which streams through memory."""
        kernel = self._cupy.RawKernel(_TRIAD, "triad")
        vectors = elements // _PER_THREAD
        arrays = [self.zeros(4 * elements) for _ in range(3)]
        arguments = (*arrays, np.float32(0.5), np.uint64(vectors))

        def launch() -> None:
            with stream:
                kernel((-(-vectors // _THREADS),), (_THREADS,), arguments)

        return launch


class Ranks:
    """The ranks of one communicator, all in this process and on its GPU."""

    def __init__(
        self,
        gpu: Gpu,
        world: int,
        *,
        channels: int,
        most_bytes: int,
        windows: bool = False,
        policy: CtaPolicy = "default",
    ) -> None:
        """Makes the communicator.

        No call has more channels or more bytes, as a tuner counts them.

        Args:
            gpu: That of all ranks.
            world: Ranks.
            channels: Of a call, at most.
            most_bytes: Of a call, at most.
            windows: Whether buffers lie in symmetric windows.
            policy: What the communicator spares SMs for.

        Raises:
            HungError: The ranks do not find each other.
        """
        self.world = world
        self.streams = tuple(gpu.stream(urgent=True) for _ in range(world))
        self._nccl = nccl = gpu.libraries.nccl
        self._patience = gpu.patience
        space = gpu.window if windows else gpu.zeros
        self._sends = [space(most_bytes) for _ in self.streams]
        self._receives = [space(most_bytes) for _ in self.streams]
        self._members: list[Any] = []

        def connect() -> None:
            name = nccl.get_unique_id()
            # The lower bound is not set by NCCL_MIN_CTAS, which would bind the plugin.
            config = nccl.NCCLConfig(
                min_ctas=channels,
                max_ctas=channels,
                cta_policy=nccl.CTAPolicy(int(POLICY_VALUES[policy])),
            )
            with nccl.group():
                self._members += [
                    nccl.Communicator.init(world, rank, name, config)
                    for rank in range(world)
                ]

        def register() -> None:
            for buffers in (self._sends, self._receives):
                with nccl.group():
                    for member, buffer in zip(self._members, buffers, strict=True):
                        member.register_window(buffer, nccl.WindowFlag.COLL_SYMMETRIC)

        within(self._patience, "making a communicator", connect)
        if windows:
            within(self._patience, "registering windows", register)

    def launch(self, function: str, per_rank: int) -> None:
        """Queues one collective on the stream of each rank.

        Args:
            function: As the rules of the tuner name it.
            per_rank: Bytes, as NCCL counts them: of a rank's own part in an all-gather
                or reduce-scatter, else of the buffer.
        """
        few, many = per_rank // 4, per_rank // 4 * self.world
        plus = self._nccl.SUM
        with self._nccl.group():
            for send, receive, member, stream in zip(
                self._sends, self._receives, self._members, self.streams, strict=True
            ):
                part, sums = receive[:few], {"op": plus, "stream": stream}
                if function == "broadcast":
                    member.broadcast(send[:few], part, 0, stream=stream)
                elif function == "reduce":
                    member.reduce(send[:few], part, root=0, **sums)
                elif function == "all-gather":
                    member.allgather(send[:few], receive[:many], stream=stream)
                elif function == "reduce-scatter":
                    member.reduce_scatter(send[:many], part, **sums)
                else:
                    member.allreduce(send[:few], part, **sums)

    def launch_first(self, function: str, per_rank: int) -> None:
        """`launch` where NCCL may have to connect the ranks in a new way.

        Raises:
            HungError: They do not get connected.
        """
        what = f"connecting ranks for {function}"
        within(self._patience, what, lambda: self.launch(function, per_rank))

    def check(self) -> None:
        """Raises NCCL's error if there was one since.

        Raises:
            RuntimeError: There was.
        """
        for member in self._members:
            if result := int(member.get_async_error()):
                raise RuntimeError(f"a collective failed: NCCL's error {result}")

    def abort(self) -> None:
        """Ends the communicator, whatever its ranks are doing."""
        # Where even that fails, what was measured before stays true.
        with contextlib.suppress(Exception):
            within(_AT_ABORT, "abort", lambda: [one.abort() for one in self._members])


def within(seconds: float, what: str, do: Callable[[], T]) -> T:
    """The value of a call that may never return.

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
    """Bytes of a rank's part of a call, as NCCL's log counts it.

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
