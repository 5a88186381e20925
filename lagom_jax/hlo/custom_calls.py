"""Custom calls: kernels from libraries, known by the name of their target."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from lagom_jax.hlo.attention import AttentionKernel, cudnn_attention, engine_attention
from lagom_jax.hlo.config import backend_config, section
from lagom_jax.hlo.convolution import convolution_flops
from lagom_jax.hlo.matmul import Matmul, dot_matmul, ragged_matmul
from lagom_jax.hlo.module import Instruction, Shape
from lagom_jax.hlo.sorting import radix_sort

SILENT_TARGETS = frozenset(
    {
        "AllocateBuffer",
        "CreateBuffer",
        "LayoutConstraint",
        "MoveToDevice",
        "MoveToHost",
        "Pin",
        "SPMDFullToShardShape",
        "SPMDShardToFullShape",
        "ShardBarrierFrom",
        "ShardBarrierTo",
        "Sharding",
        "Unpin",
        "__custom_kernel_fusion$workspace",
        "annotate_device_placement",
        "dce_sink_gpu_ffi",
    }
)
"""Targets that only mark something for the compiler: no kernel runs."""

HOST_CALLBACKS = frozenset(
    {
        "xla_ffi_partitioned_python_gpu_callback",
        "xla_ffi_python_gpu_callback",
        "xla_python_gpu_callback",
    }
)
"""Targets that call Python: operands go to the host, results come back."""

_SCRATCH_OWNERS = ("__cublas$", "__cudnn$", "__cub$", "xla.gpu.ext.cub", "te_")
# Threefry-2x32 makes two words in 20 rounds of an addition, a rotation (two shifts
# and an or) and an exclusive or, with 5 injections of 3 additions and 2 to begin.
_THREEFRY_PER_WORD = (20 * 5 + 5 * 3 + 2) / 2
# A layer norm adds for the mean (1), subtracts, squares and adds for the variance
# (3), normalises (2), scales and shifts (2).
_NORM_FORWARD = 8
# Its gradient normalises again (2), sums for scale (2) and shift (1), scales (1),
# sums twice for the mean's and the variance's share (3), and combines (4).
_NORM_BACKWARD = 13


@dataclasses.dataclass(frozen=True, slots=True)
class CustomCall:
    """The work of one custom call.

    Example:
        >>> CustomCall("sort", flops=1e6, extra_read=4096).matmuls
        ()
    """

    kind: str
    flops: float = 0.0
    matmuls: tuple[Matmul, ...] = ()
    extra_read: int = 0
    """Bytes read beyond reading every operand once."""
    extra_written: int = 0
    """Bytes written beyond writing every result once."""


def is_silent(target: str) -> bool:
    """True if a custom call with this target runs no kernel.

    Example:
        >>> is_silent("AllocateBuffer"), is_silent("__cublas$gemm")
        (True, False)
    """
    return target in SILENT_TARGETS or target.startswith("xla.sdy.")


def result_shapes(instruction: Instruction) -> list[Shape]:
    """The arrays that a call returns, with a library's scratch memory left out.

    cuBLAS, cuDNN and CUB calls return their workspace as a last array of bytes; what
    a kernel does there is not known and mostly stays in the cache.
    """
    leaves = list(instruction.shape.leaves)
    target: str = instruction.proto.custom_call_target
    if is_silent(target):
        return []
    if len(leaves) > 1 and target.startswith(_SCRATCH_OWNERS):
        last = leaves[-1]
        if last.type in ("s8", "u8") and len(last.dimensions) <= 1:
            leaves.pop()
    return leaves


def read_call(instruction: Instruction, operands: Sequence[Shape]) -> CustomCall:
    """The work of a custom call; kind `custom` and no flops where that is unknown.

    Args:
        instruction: An instruction with opcode `custom-call`.
        operands: The shapes of its operands.
    """
    target: str = instruction.proto.custom_call_target
    try:
        found = _library_call(target, instruction, operands)
    except (IndexError, KeyError, TypeError, ValueError, ZeroDivisionError):
        # A call that does not look as its library's calls do is one that nothing is
        # known about; its bytes still count.
        found = None
    return found or CustomCall("custom")


def _library_call(
    target: str, instruction: Instruction, operands: Sequence[Shape]
) -> CustomCall | None:
    if target.startswith("__cublas$lt$groupedMatmul"):
        return _grouped_gemm(instruction, operands)
    if target.startswith(("__cublas$gemm", "__cublas$lt$matmul")):
        return _gemm(instruction, operands)
    if target in ("__cudnn$blockScaledDot", "__op$block_scaled_dot"):
        return _block_scaled_dot(instruction, operands)
    if target.startswith("__cudnn$fmha"):
        return _attention(cudnn_attention(instruction, operands))
    if target.startswith("te_fused_attn_"):
        found = engine_attention(instruction, operands)
        return _attention(found) if found else None
    if target.startswith("__cudnn$convReorder"):
        return CustomCall("transpose")
    if target.startswith("__cudnn$conv"):
        return _convolution(target, instruction, operands)
    if target == "__cudnn$norm":
        return _norm(instruction, operands)
    if target.startswith(("__cub$DeviceRadixSort", "xla.gpu.ext.cub_sort")):
        return _radix_sort(instruction, operands)
    if target.startswith("xla.gpu.ext.cub_scan"):
        return CustomCall("reduction", float(operands[0].element_count))
    if target in ("__gpu$TopK", "TopK"):
        # Every element is compared with the smallest of those kept so far.
        return CustomCall("sort", float(operands[0].element_count))
    if target in ("__cusolver$cholesky", "cusolver_potrf_ffi"):
        matrix = operands[0]
        return CustomCall("solve", matrix.element_count * matrix.dimensions[-1] / 3)
    if target == "__cublas$triangularSolve":
        matrix, right = operands[:2]
        return CustomCall("solve", float(matrix.dimensions[-1] * right.element_count))
    if target == "cu_threefry2x32_ffi":
        words = sum(shape.element_count for shape in instruction.shape.leaves)
        return CustomCall("fusion", words * _THREEFRY_PER_WORD)
    if target in ("PadToStatic", "SliceToDynamic"):
        return CustomCall("copy")
    return None


def _product(matmul: Matmul) -> CustomCall:
    return CustomCall("matmul", float(matmul.flops), (matmul,))


def _gemm(instruction: Instruction, operands: Sequence[Shape]) -> CustomCall:
    config = section(backend_config(instruction), "gemm_backend_config")
    lhs, rhs = operands[:2]
    out = instruction.shape.leaves[0]
    if "dot_dimension_numbers" in config:
        numbers = config["dot_dimension_numbers"]
        return _product(dot_matmul(lhs, rhs, out.type, numbers))
    return _product(_matmul_of_sizes(lhs, rhs, out))


def _matmul_of_sizes(lhs: Shape, rhs: Shape, out: Shape) -> Matmul:
    """The product of two matrices whose config was not printed.

    Of m*k, k*n and m*n elements, k*k is the first two over the last.
    """
    if not len(lhs.dimensions) == len(rhs.dimensions) == len(out.dimensions) == 2:
        raise ValueError("only two matrices leave no doubt which dimensions are summed")
    m_k, k_n, m_n = lhs.element_count, rhs.element_count, out.element_count
    k = math.isqrt(m_k * k_n // m_n)
    if k not in lhs.dimensions or k not in rhs.dimensions or m_k * k_n != k * k * m_n:
        raise ValueError("these matrices have no product of this size")
    return Matmul(1, m_k // k, k_n // k, k, lhs.type, rhs.type, out.type)


def _grouped_gemm(instruction: Instruction, operands: Sequence[Shape]) -> CustomCall:
    config = section(backend_config(instruction), "grouped_gemm_backend_config")
    numbers = config["ragged_dot_dimension_numbers"]
    out = instruction.shape.leaves[0].type
    return _product(ragged_matmul(operands[0], operands[1], out, numbers))


def _block_scaled_dot(
    instruction: Instruction, operands: Sequence[Shape]
) -> CustomCall:
    lhs, rhs = operands[:2]
    *batch, m, k = lhs.dimensions
    n = rhs.dimensions[-2]
    out = instruction.shape.leaves[0].type
    return _product(Matmul(math.prod(batch), m, n, k, lhs.type, rhs.type, out))


def _attention(found: AttentionKernel) -> CustomCall:
    return CustomCall("attention", found.flops, found.matmuls)


def _convolution(
    target: str, instruction: Instruction, operands: Sequence[Shape]
) -> CustomCall:
    first, second = operands[:2]
    result = instruction.shape.leaves[0]
    if target.startswith("__cudnn$convBackwardInput"):
        data, kernel, out = result, second, first
    elif target.startswith("__cudnn$convBackwardFilter"):
        data, kernel, out = first, result, second
    else:
        data, kernel, out = first, second, result
    flops = convolution_flops(instruction.proto, data, kernel, out)
    return CustomCall("convolution", float(flops))


def _norm(instruction: Instruction, operands: Sequence[Shape]) -> CustomCall:
    config = section(backend_config(instruction), "cudnn_norm_backend_config")
    backward = config.get("kind") in ("LAYER_BWD", 2)
    each = _NORM_BACKWARD if backward else _NORM_FORWARD
    return CustomCall("reduction", float(each * operands[0].element_count))


def _radix_sort(instruction: Instruction, operands: Sequence[Shape]) -> CustomCall:
    keys = operands[0]
    moved = sum(shape.byte_size for shape in result_shapes(instruction))
    passes = radix_sort(keys.byte_size // max(1, keys.element_count))
    # Before the first pass the keys are read once more, to count their digits.
    extra = (passes - 1) * moved
    return CustomCall("sort", 0.0, (), extra + keys.byte_size, extra)
