"""Work of single kernels: a product of matrices, and data that passes over memory."""

from __future__ import annotations

from typing import Final

from lagom_jax.hlo.matmul import Matmul
from lagom_jax.hlo.work import Work
from lagom_jax.mesh.flows import COMPUTE_BYTES

BF16: Final = "bf16"
F32: Final = "f32"


def product(matmul: Matmul) -> Work:
    """A product by itself: operands in 16 bits are read, the result is written.

    Example:
        >>> product(Matmul(1, 2, 4, 8, BF16, BF16, F32)).bytes_written
        32
    """
    operand = matmul.batch * matmul.k * (matmul.m + matmul.n) * COMPUTE_BYTES
    size = 4 if matmul.out == F32 else 2
    written = matmul.batch * matmul.m * matmul.n * size
    return Work("matmul", float(matmul.flops), operand, written, (matmul,))


def moved(kind: str, nbytes: float) -> Work:
    """Data that is read and written.

    Args:
        kind: Of the kernel, one of `lagom_jax.hlo.work.KINDS`.
        nbytes: Read and written.

    Example:
        >>> moved("copy", 8.0).bytes_read
        4
    """
    return Work(kind, 0.0, int(nbytes / 2), int(nbytes / 2))
