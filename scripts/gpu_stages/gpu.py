"""Streams, events, kernels and ranks of NCCL on the one GPU that a stage uses.

CuPy and nccl4py make the calls; both are imported when a stage starts, so that this
package imports without them. A dry run has stand-ins with the same functions.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from gpu_stages.stage import CannotRunError, Request
from lagom_jax.hlo.matmul import Matmul
from lagom_jax.plan.transport import POLICY_VALUES, CtaPolicy

RANKS: Final = 2
"""Of a communicator on the one GPU. Each of their channels holds an SM, and each rank
waits for the other: if not all fit at a time, they wait for ever. Two ranks of 32
channels hold as many SMs as one rank can at most, and leave some to kernels."""
MOST_CHANNELS: Final = 32
ON_ONE_GPU: Final = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
"""Lets NCCL have several ranks on one GPU, from 2.30 on."""
_INSTALL: Final = "pip install 'lagom_jax[gpu-check]'"
# From this release on, too, a tuner is asked for chunks.
_FIRST_WITH_SHARED_GPUS: Final = (2, 30)
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
# Random numbers; more are repetitions.
_DIFFERENT: Final = 1 << 20
# Numbers of cuBLAS: no transposition, bf16, sums in f32, its own choice of a kernel.
_PLAIN, _BF16, _IN_F32, _CHOSEN = 0, 14, 68, -1
# To sleep costs more than most waits last; only after so long it spares a core.
_AWAKE_SECONDS: Final = 0.05
_POLL_SECONDS: Final = 1e-3
_AT_ABORT: Final = 10.0


class HungError(Exception):
    """The GPU or NCCL did not finish in time."""


class Gpu:
    """The GPU of this process, and the libraries that make the calls."""

    def __init__(self, request: Request) -> None:
        """Loads the libraries and starts CUDA; the environment must be set before.

        Raises:
            CannotRunError: A library is missing, or there is no GPU.
        """
        # In seconds: what is waited for longer counts as hung.
        self.patience = request.patience
        self._cupy, self.nccl, self._windowed = _libraries(dry=request.dry)
        found = self.nccl.get_version().libnccl
        if found is None:
            raise CannotRunError(f"no NCCL here: {_INSTALL}")
        self.nccl_release = str(found.version)
        """As text: 2.30.4."""
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

    def array(self, nbytes: int, *, window: bool = False) -> Any:
        """An array of f32, ready for any stream: zeros, or memory of NCCL's own."""
        make = self._windowed.empty if window else self._cupy.zeros
        array = make(nbytes // 4, np.float32)
        self._cupy.cuda.runtime.deviceSynchronize()
        return array

    def record(self, stream: Any) -> Any:
        """A new event, reached when the stream has done its work so far."""
        event = self._cupy.cuda.Event()
        event.record(stream)
        return event

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
        """A function that launches a product of bf16 with cuBLAS.

        Of random numbers: over zeros the GPU draws less power, and is faster.
        """
        blas = self._cupy.cuda.cublas
        handle = blas.create()
        m, n, k = product.m, product.n, product.k
        lhs, rhs = (self._cupy.asarray(random_bf16(size)) for size in (m * k, k * n))
        out = self.array(2 * m * n)
        one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)

        def launch() -> None:
            # cuBLAS counts by columns: rows of the product are columns of its
            # transpose, the operands change places. CuPy sets the handle's stream to
            # the current one in each call.
            with stream:
                blas.gemmEx(
                    *(handle, _PLAIN, _PLAIN, n, m, k, one.ctypes.data),
                    *(rhs.data.ptr, _BF16, n, lhs.data.ptr, _BF16, k),
                    *(zero.ctypes.data, out.data.ptr, _BF16, n, _IN_F32, _CHOSEN),
                )

        return launch

    def triad(self, stream: Any, elements: int) -> Callable[[], None]:
        """A function that launches a kernel which streams through memory."""
        kernel = self._cupy.RawKernel(_TRIAD, "triad")
        vectors = elements // _PER_THREAD
        arrays = [self.array(4 * elements) for _ in range(3)]
        arguments = (*arrays, np.float32(0.5), np.uint64(vectors))

        def launch() -> None:
            with stream:
                kernel((-(-vectors // _THREADS),), (_THREADS,), arguments)

        return launch


class Ranks:
    """The ranks of one communicator, in this process and on its GPU, for a block."""

    def __init__(
        self,
        gpu: Gpu,
        most_bytes: int,
        *,
        windows: bool = False,
        policy: CtaPolicy = "default",
    ) -> None:
        """Makes the communicator.

        No call has more bytes, as a tuner counts them. With `windows` all buffers lie
        in symmetric windows.

        Raises:
            CannotRunError: They do not fit the GPU, or NCCL is too old.
            HungError: The ranks do not find each other.
        """
        _check_room(gpu)
        self.streams = tuple(gpu.stream(urgent=True) for _ in range(RANKS))
        self._nccl = nccl = gpu.nccl
        self._gpu = gpu
        self._sends, self._receives = (
            [gpu.array(most_bytes, window=windows) for _ in self.streams]
            for _ in range(2)
        )
        self._members: list[Any] = []

        def connect() -> None:
            name = nccl.get_unique_id()
            # No lower bound: from NCCL 2.32 on it would bind the plugin. Ranks on one
            # GPU have as many channels as they may without it.
            config = nccl.NCCLConfig(
                max_ctas=MOST_CHANNELS,
                cta_policy=nccl.CTAPolicy(int(POLICY_VALUES[policy])),
            )
            with nccl.group():
                self._members += [
                    nccl.Communicator.init(RANKS, rank, name, config)
                    for rank in range(RANKS)
                ]
            for buffers in (self._sends, self._receives) if windows else ():
                with nccl.group():
                    for member, buffer in zip(self._members, buffers, strict=True):
                        member.register_window(buffer, nccl.WindowFlag.COLL_SYMMETRIC)

        within(gpu.patience, "making a communicator", connect)

    def launch(self, function: str, nbytes: int) -> None:
        """Queues one collective on the stream of each rank.

        Its function and its bytes are as a tuner has them: those of the larger side.
        """
        part = nbytes // 4 // RANKS
        whole = part * RANKS
        plus = self._nccl.SUM
        with self._nccl.group():
            for send, receive, member, stream in zip(
                self._sends, self._receives, self._members, self.streams, strict=True
            ):
                operands, on = (send[:whole], receive[:whole]), {"stream": stream}
                if function == "broadcast":
                    member.broadcast(*operands, root=0, **on)
                elif function == "reduce":
                    member.reduce(*operands, op=plus, root=0, **on)
                elif function == "all-gather":
                    member.allgather(send[:part], receive[:whole], **on)
                elif function == "reduce-scatter":
                    member.reduce_scatter(send[:whole], receive[:part], op=plus, **on)
                else:
                    member.allreduce(*operands, op=plus, **on)

    def run(self, function: str, nbytes: int) -> None:
        """`launch`, and its end; NCCL may have to connect the ranks anew.

        Raises:
            HungError: They do not get connected, or it does not end.
            RuntimeError: It failed.
        """
        what = f"connecting ranks for {function}"
        within(self._gpu.patience, what, lambda: self.launch(function, nbytes))
        self._gpu.finish(*self.streams)
        self.check()

    def check(self) -> None:
        """Raises NCCL's error if there was one since.

        Raises:
            RuntimeError: There was.
        """
        for member in self._members:
            if result := int(member.get_async_error()):
                raise RuntimeError(f"a collective failed: NCCL's error {result}")

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the communicator, whatever its ranks are doing."""

        def abort() -> None:
            for member in self._members:
                member.abort()

        # Where even that fails, what was measured before stays true.
        with contextlib.suppress(Exception):
            within(_AT_ABORT, "abort", abort)


def random_bf16(count: int) -> Any:
    """So many bf16 from -1 to 1, as their bits.

    Example:
        >>> random_bf16(3).dtype, random_bf16(1 << 21).size
        (dtype('uint16'), 2097152)
    """
    some = np.random.default_rng(1).uniform(-1.0, 1.0, min(count, _DIFFERENT))
    # The upper half of a float is a bf16.
    bits = (some.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return np.resize(bits, count)


def within(seconds: float, what: str, do: Callable[[], None]) -> None:
    """Makes a call that may never return.

    Example:
        >>> within(0.01, "sleeping", lambda: time.sleep(0.1))
        Traceback (most recent call last):
        ...
        gpu_stages.gpu.HungError: sleeping did not end in 0 s

    Raises:
        HungError: It did not in time; it is left behind in a thread of its own.
    """
    raised: list[BaseException] = []

    def work() -> None:
        try:
            do()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if raised:
        raise raised[0]
    if thread.is_alive():
        raise HungError(f"{what} did not end in {seconds:.0f} s")


def _check_room(gpu: Gpu) -> None:
    """Raises an error where ranks cannot share the GPU."""
    release = tuple(int(part) for part in gpu.nccl_release.split("."))
    if release < _FIRST_WITH_SHARED_GPUS:
        first = ".".join(map(str, _FIRST_WITH_SHARED_GPUS))
        why = f"has no ranks that share a GPU, {first} has: {_INSTALL}"
        raise CannotRunError(f"NCCL {gpu.nccl_release} {why}")
    if gpu.sm_count <= RANKS * MOST_CHANNELS:
        raise CannotRunError(
            f"{RANKS} ranks of {MOST_CHANNELS} channels do not fit {gpu.sm_count} SMs, "
            "and would wait for each other for ever: use a GPU with more of them"
        )


def _libraries(*, dry: bool) -> tuple[Any, Any, Any]:
    """CuPy, nccl4py, and the arrays of CuPy in NCCL's own memory."""
    if dry:
        from gpu_stages.standin import cupy, nccl

        return cupy, nccl, nccl
    try:
        import cupy  # pyright: ignore[reportMissingImports]
        from nccl import core  # pyright: ignore[reportMissingImports]
        from nccl.core.interop import (  # pyright: ignore[reportMissingImports]
            cupy as windowed,
        )
    except ImportError as error:
        raise CannotRunError(
            f"CuPy and nccl4py are needed ({error}): {_INSTALL}"
        ) from None
    return cupy, core, windowed
