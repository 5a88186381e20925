"""Kernels whose time is known to depend on arithmetic or on memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Final

from gpu_stages.cuda.binding import CallError
from gpu_stages.cuda.prototypes import value
from gpu_stages.cuda.runtime import Gpu, Stream
from lagom_jax.hlo.matmul import Matmul

_BF16: Final = 2
# What XLA gives cuBLAS on Hopper.
_WORKSPACE_BYTES: Final = 32 << 20
# As XLA's loops have it: a block for so many elements, four for each thread.
_THREADS, _PER_THREAD = 256, 4
TRIAD_BYTES: Final = 12
"""Read and written for each element."""
TRIAD: Final = """
extern "C" __global__ void triad(float4 *out, const float4 *one, const float4 *other,
                                 float factor, size_t count) {
  size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  float4 a = one[i], b = other[i];
  out[i] = make_float4(a.x + factor * b.x, a.y + factor * b.y, a.z + factor * b.z,
                       a.w + factor * b.w);
}
"""


def matmuls(gpu: Gpu, stream: Stream) -> Callable[[Matmul], Callable[[], None]]:
    """For each product of bf16, what launches it on a stream with cuBLAS."""
    blas = gpu.libraries.cublas
    handle = ctypes.c_void_p()
    blas.call("cublasCreate_v2", ctypes.byref(handle))
    blas.call("cublasSetStream_v2", handle, stream.handle)
    blas.call(
        "cublasSetWorkspace_v2", handle, gpu.memory(_WORKSPACE_BYTES), _WORKSPACE_BYTES
    )
    one, zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
    plain, bf16 = value("CUBLAS_OP_N"), value("CUDA_R_16BF")

    def launcher(matmul: Matmul) -> Callable[[], None]:
        m, n, k = matmul.m, matmul.n, matmul.k
        lhs, rhs, out = (gpu.memory(_BF16 * s) for s in (m * k, k * n, m * n))

        def launch() -> None:
            # cuBLAS counts by columns: rows of the product are columns of its
            # transpose, the operands change places.
            blas.call(
                "cublasGemmEx",
                *(handle, plain, plain, n, m, k, ctypes.byref(one)),
                *(rhs, bf16, n, lhs, bf16, k, ctypes.byref(zero)),
                *(out, bf16, n),
                *(value("CUBLAS_COMPUTE_32F"), value("CUBLAS_GEMM_DEFAULT")),
            )

        return launch

    return launcher


def triads(gpu: Gpu, stream: Stream) -> Callable[[int], Callable[[], None]]:
    """For each number of elements, what launches a streaming triad of that length."""
    driver = gpu.libraries.driver
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    binary = compiled(gpu, TRIAD)
    driver.call("cuModuleLoadData", ctypes.byref(module), binary)
    driver.call("cuModuleGetFunction", ctypes.byref(function), module, b"triad")

    def launcher(elements: int) -> Callable[[], None]:
        vectors = elements // _PER_THREAD
        arguments = [
            *(ctypes.c_void_p(gpu.memory(4 * elements)) for _ in range(3)),
            ctypes.c_float(0.5),
            ctypes.c_size_t(vectors),
        ]
        pointers = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))

        def launch(_: object = arguments) -> None:
            blocks = -(-vectors // _THREADS)
            driver.call(
                "cuLaunchKernel",
                *(function, blocks, 1, 1, _THREADS, 1, 1, 0, stream.handle),
                *(pointers, None),
            )

        return launch

    return launcher


def compiled(gpu: Gpu, source: str) -> bytes:
    """A kernel's machine code for this GPU.

    Raises:
        CallError: It does not compile; the text has the compiler's words.
    """
    nvrtc = gpu.libraries.nvrtc
    program = ctypes.c_void_p()
    nvrtc.call(
        "nvrtcCreateProgram",
        *(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None),
    )
    option = f"--gpu-architecture={gpu.architecture}".encode()
    try:
        nvrtc.call("nvrtcCompileProgram", program, 1, (ctypes.c_char_p * 1)(option))
    except CallError as error:
        log = _filled(gpu, program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog")
        words = log.rstrip(b"\0").decode(errors="replace")
        raise CallError(error.function, error.status, words) from None
    return _filled(gpu, program, "nvrtcGetCUBINSize", "nvrtcGetCUBIN")


def _filled(gpu: Gpu, program: ctypes.c_void_p, size: str, content: str) -> bytes:
    nvrtc = gpu.libraries.nvrtc
    count = ctypes.c_size_t()
    nvrtc.call(size, program, ctypes.byref(count))
    buffer = ctypes.create_string_buffer(count.value)
    nvrtc.call(content, program, buffer)
    return buffer.raw
