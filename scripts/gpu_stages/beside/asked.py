"""Which kernels are measured beside which collectives, and which of them are kept out.

Whole shapes of kernels and whole settings are kept out of the fit, not rows at random:
a law that was fitted to some must say something about others.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Final

from gpu_stages.cuda.kernels import TRIAD_BYTES
from lagom_jax.hlo.matmul import Matmul
from lagom_jax.hlo.work import Work
from lagom_jax.plan.setting import largest_chunk
from lagom_jax.tuner import Answer

_KEPT_OUT_CHANNELS: Final = (4, 16)
_KEPT_OUT_FUNCTION: Final = "reduce-scatter"
_KIB: Final = 1 << 10
_BF16: Final = 2


@dataclasses.dataclass(frozen=True, slots=True)
class KernelAsked:
    """A kernel that is measured."""

    name: str
    work: Work
    kept_out: bool
    elements: int = 0
    """Of a triad; 0 for a matmul."""


@dataclasses.dataclass(frozen=True, slots=True)
class SettingAsked:
    """A collective that is measured, and what NCCL is told about it.

    Example:
        >>> setting = SettingAsked("all-gather", Answer("ring", "ll", 4))
        >>> str(setting), setting.chunk_bytes, setting.kept_out
        ('all-gather, ring/ll, 4 channels', 32768, True)
    """

    function: str
    answer: Answer

    def __str__(self) -> str:
        """In words."""
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
        """What it is told, or NCCL's own."""
        answer = self.answer
        assert answer.algorithm is not None
        assert answer.protocol is not None
        return answer.chunk_bytes or largest_chunk(answer.algorithm, answer.protocol)


def kernels() -> list[KernelAsked]:
    """Matmuls that arithmetic limits, and kernels that memory limits.

    Example:
        >>> sum(kernel.kept_out for kernel in kernels()), len(kernels())
        (4, 9)
    """
    return [
        _matmul(4096, 4096, 4096),
        _triad(64 << 20),
        _matmul(8192, 8192, 8192, kept_out=True),
        _matmul(4096, 14336, 4096),
        _triad(24 << 20, kept_out=True),
        _matmul(2048, 4096, 14336, kept_out=True),
        _matmul(16384, 2048, 1024),
        _matmul(16, 16384, 8192),
        _matmul(32, 28672, 4096, kept_out=True),
    ]


def settings() -> list[SettingAsked]:
    """What NCCL is told, mixed, so that any first part of the list has all sorts.

    Example:
        >>> len(settings()), len(set(settings()))
        (43, 43)
    """
    asked = [
        ("all-gather", Answer("ring", "simple", channels, chunk * _KIB))
        for channels in (1, 2, 4, 8, 16, 32)
        for chunk in (64, 512, 2048)
    ]
    asked += [
        ("all-reduce", Answer("ring", "simple", channels, chunk * _KIB))
        for channels in (2, 8, 16, 32)
        for chunk in (128, 1024)
    ]
    asked += [
        ("reduce-scatter", Answer("ring", "simple", channels, chunk * _KIB))
        for channels in (2, 8, 32)
        for chunk in (256, 2048)
    ]
    asked += [
        (function, Answer("ring", protocol, channels))
        for function in ("all-gather", "all-reduce")
        for protocol, several in (("ll", (8, 32)), ("ll128", (8, 32)))
        for channels in several
    ]
    asked.append(("all-gather", Answer("ring", "ll128", 4)))
    asked += [
        ("all-reduce", Answer("tree", "simple", channels, 512 * _KIB))
        for channels in (8, 32)
    ]
    random.Random(1).shuffle(asked)
    return [SettingAsked(*one) for one in asked]


def _matmul(m: int, n: int, k: int, *, kept_out: bool = False) -> KernelAsked:
    matmul = Matmul(1, m, n, k, "bf16", "bf16", "bf16")
    read, written = _BF16 * (m * k + k * n), _BF16 * m * n
    work = Work("matmul", matmul.flops, read, written, (matmul,))
    return KernelAsked(f"matmul {m} x {n} x {k}", work, kept_out)


def _triad(elements: int, *, kept_out: bool = False) -> KernelAsked:
    third = TRIAD_BYTES * elements // 3
    work = Work("fusion", 2.0 * elements, 2 * third, third)
    name = f"triad of {3 * third >> 20} MiB"
    return KernelAsked(name, work, kept_out, elements)
