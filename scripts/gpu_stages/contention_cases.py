"""Kernels and collectives that are measured together, and which are kept out of a fit.

Whole shapes of kernels and whole settings are kept out, not rows at random: a law that
was fitted to some must hold for others.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Final

from gpu_stages.gpu import TRIAD_BYTES
from lagom_jax.hlo.matmul import Matmul
from lagom_jax.hlo.work import Work
from lagom_jax.plan.setting import largest_chunk
from lagom_jax.tuner import Answer

_KEPT_OUT_CHANNELS: Final = (4, 16)
_KEPT_OUT_FUNCTION: Final = "reduce-scatter"
_KIB: Final = 1 << 10
_BF16: Final = 2


@dataclasses.dataclass(frozen=True, slots=True)
class KernelCase:
    """A kernel that is measured."""

    name: str
    work: Work
    kept_out: bool
    elements: int = 0
    """Of a triad; 0 for a product."""


@dataclasses.dataclass(frozen=True, slots=True)
class CollectiveCase:
    """A collective that is measured, with the plugin's answer for it.

    Example:
        >>> case = CollectiveCase("all-gather", Answer("ring", "ll", 4))
        >>> str(case), case.chunk_bytes, case.kept_out
        ('all-gather, ring/ll, 4 channels', 32768, True)
    """

    function: str
    answer: Answer

    def __str__(self) -> str:
        """For people."""
        return f"{self.function}, {self.answer}"

    @property
    def kept_out(self) -> bool:
        """Whether nothing is fitted to it."""
        return (
            self.function == _KEPT_OUT_FUNCTION
            or self.answer.channels in _KEPT_OUT_CHANNELS
        )

    @property
    def chunk_bytes(self) -> int:
        """The plugin's chunk, or NCCL's own."""
        answer = self.answer
        assert answer.algorithm is not None
        assert answer.protocol is not None
        return answer.chunk_bytes or largest_chunk(answer.algorithm, answer.protocol)


def kernel_cases() -> list[KernelCase]:
    """Products that arithmetic limits, and kernels that memory limits.

    Example:
        >>> sum(kernel.kept_out for kernel in kernel_cases()), len(kernel_cases())
        (4, 9)
    """
    return [
        _product(4096, 4096, 4096),
        _triad(64 << 20),
        _product(8192, 8192, 8192, kept_out=True),
        _product(4096, 14336, 4096),
        _triad(24 << 20, kept_out=True),
        _product(2048, 4096, 14336, kept_out=True),
        _product(16384, 2048, 1024),
        _product(16, 16384, 8192),
        _product(32, 28672, 4096, kept_out=True),
    ]


def collective_cases() -> list[CollectiveCase]:
    """All settings, mixed, so that any first part of the list has all sorts.

    Example:
        >>> len(collective_cases()), len(set(collective_cases()))
        (43, 43)
    """
    simple = {
        "all-gather": ((1, 2, 4, 8, 16, 32), (64, 512, 2048)),
        "all-reduce": ((2, 8, 16, 32), (128, 1024)),
        "reduce-scatter": ((2, 8, 32), (256, 2048)),
    }
    cases = [
        (function, Answer("ring", "simple", channels, chunk * _KIB))
        for function, (several, chunks) in simple.items()
        for channels in several
        for chunk in chunks
    ]
    cases += [
        (function, Answer("ring", protocol, channels))
        for function in ("all-gather", "all-reduce")
        for protocol in ("ll", "ll128")
        for channels in (8, 32)
    ]
    cases.append(("all-gather", Answer("ring", "ll128", 4)))
    cases += [
        ("all-reduce", Answer("tree", "simple", channels, 512 * _KIB))
        for channels in (8, 32)
    ]
    random.Random(1).shuffle(cases)
    return [CollectiveCase(*one) for one in cases]


def _product(m: int, n: int, k: int, *, kept_out: bool = False) -> KernelCase:
    matmul = Matmul(1, m, n, k, "bf16", "bf16", "bf16")
    read, written = _BF16 * (m * k + k * n), _BF16 * m * n
    work = Work("matmul", matmul.flops, read, written, (matmul,))
    return KernelCase(f"matmul {m} x {n} x {k}", work, kept_out)


def _triad(elements: int, *, kept_out: bool = False) -> KernelCase:
    third = TRIAD_BYTES * elements // 3
    work = Work("fusion", 2.0 * elements, 2 * third, third)
    name = f"triad of {3 * third >> 20} MiB"
    return KernelCase(name, work, kept_out, elements)
