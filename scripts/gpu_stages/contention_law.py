"""Kernels and collectives that are measured together, and the model's law for them."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from statistics import median
from typing import Any, Final

from gpu_stages.gpu import RANKS, TRIAD_BYTES, Gpu
from lagom_jax.cluster import Cluster
from lagom_jax.cost.compute import kernel_price
from lagom_jax.cost.constants import load_constants
from lagom_jax.cost.loads import (
    CollectiveLoad,
    KernelLoad,
    kernel_load,
    memory_rate,
)
from lagom_jax.cost.sharing import SharedWith
from lagom_jax.cost.sharing_constants import SharingConstants, load_sharing_constants
from lagom_jax.cost.span import wire_bytes
from lagom_jax.hlo.matmul import Matmul
from lagom_jax.hlo.work import Work
from lagom_jax.nccl_plugin import Answer
from lagom_jax.plan.setting import Setting, largest_chunk, threads_range

_KIB: Final = 1 << 10
_BF16: Final = 2
# Products that arithmetic limits, and thin ones that memory limits: m, n, k.
_PRODUCTS: Final = (
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (4096, 14336, 4096),
    (2048, 4096, 14336),
    # 144 tiles are two rounds on 132 SMs and on 100, if kernels go by rounds.
    (1536, 1536, 8192),
    (16384, 2048, 1024),
    (16, 16384, 8192),
    (32, 28672, 4096),
)
_TRIADS: Final = (64 << 20, 24 << 20)
# Channels and KiB of chunks, with the ring in Simple.
_SIMPLE: Final = {
    "all-gather": ((1, 2, 4, 8, 16, 32), (64, 512, 2048)),
    "all-reduce": ((2, 8, 16, 32), (128, 1024)),
    "reduce-scatter": ((2, 8, 32), (256, 2048)),
}


@dataclasses.dataclass(frozen=True, slots=True)
class KernelCase:
    """A kernel that is measured."""

    name: str
    work: Work
    elements: int = 0
    """Of a triad; 0 for a product."""

    def launcher(self, gpu: Gpu, stream: Any) -> Callable[[], None]:
        """A function that launches it."""
        if self.elements:
            return gpu.triad(stream, self.elements)
        return gpu.matmul(stream, self.work.matmuls[0])


@dataclasses.dataclass(frozen=True, slots=True)
class CollectiveCase:
    """A collective that is measured, with the plugin's answer for it."""

    function: str
    answer: Answer

    def __str__(self) -> str:
        """For people."""
        return f"{self.function}, {self.answer}"

    @property
    def setting(self) -> Setting:
        """The answer, with NCCL's own chunk where it has none."""
        answer = self.answer
        assert answer.algorithm is not None
        assert answer.protocol is not None
        assert answer.channels is not None
        way = (answer.algorithm, answer.protocol)
        chunk = answer.chunk_bytes or largest_chunk(*way)
        return Setting(*way, answer.channels, threads_range(*way)[1], chunk)


@dataclasses.dataclass(frozen=True, slots=True)
class Slowed:
    """Seconds of one launch, alone and beside another: an entry for each turn."""

    alone: tuple[float, ...]
    together: tuple[float, ...]

    @property
    def slowdown(self) -> float:
        """Median of time together over time alone, turn by turn."""
        turns = zip(self.together, self.alone, strict=True)
        return median(together / alone for together, alone in turns)


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """A measured pair."""

    kernel: KernelCase
    collective: CollectiveCase
    nbytes: int
    """As a tuner counts them."""
    of_kernel: Slowed
    of_collective: Slowed


class Law:
    """The model's slowdowns of kernels and collectives on one GPU."""

    def __init__(
        self, cluster: Cluster, constants: SharingConstants | None = None
    ) -> None:
        self._cluster = cluster
        self._constants = load_constants(cluster)
        self._sharing = constants or load_sharing_constants(cluster.gpu)

    def kernel(self, row: Measured) -> float:
        """Predicted slowdown of the kernel, with its measured time alone."""
        return self._shared(row).of(self._kernel_load(row))

    def collective(self, row: Measured) -> float:
        """Predicted slowdown of the collective, with its measured time alone."""
        (found,) = self._shared(row).of_collectives(self._kernel_load(row))
        return found

    def _shared(self, row: Measured) -> SharedWith:
        return SharedWith([self.load(row)], self._cluster.gpu, self._sharing)

    def _kernel_load(self, row: Measured) -> KernelLoad:
        work = row.kernel.work
        price = kernel_price(work, self._cluster, self._constants)
        alone = dataclasses.replace(price, seconds=median(row.of_kernel.alone))
        return kernel_load(work, alone, self._cluster.gpu)

    def load(self, row: Measured) -> CollectiveLoad:
        """Load of all ranks together on the GPU that they share.

        The link between them is the GPU's own memory, so no other link is shared.
        """
        kind, setting = row.collective.function, row.collective.setting
        sent = wire_bytes(kind, row.nbytes, RANKS)
        alone = median(row.of_collective.alone)
        rate = memory_rate(sent, alone, self._sharing.passes(kind, setting))
        return CollectiveLoad(
            RANKS * setting.channels,
            setting.chunk_bytes,
            RANKS * rate,
            "the GPU itself",
            0.0,
            reduces_in_full=kind == "all-reduce" and setting.protocol == "simple",
        )


def kernel_cases() -> list[KernelCase]:
    """Products that arithmetic limits, and kernels that memory limits."""
    cases: list[KernelCase] = []
    for m, n, k in _PRODUCTS:
        matmul = Matmul(1, m, n, k, "bf16", "bf16", "bf16")
        read, written = _BF16 * (m * k + k * n), _BF16 * m * n
        work = Work("matmul", matmul.flops, read, written, (matmul,))
        cases.append(KernelCase(f"matmul {m} x {n} x {k}", work))
    for elements in _TRIADS:
        third = TRIAD_BYTES * elements // 3
        work = Work("fusion", 2.0 * elements, 2 * third, third)
        cases.append(KernelCase(f"triad of {3 * third >> 20} MiB", work, elements))
    return cases


def collective_cases() -> list[CollectiveCase]:
    """All settings, mixed, so that any first part of the list has all sorts.

    Example:
        >>> len(collective_cases()), len(set(collective_cases()))
        (42, 42)
    """
    cases = [
        CollectiveCase(function, Answer("ring", "simple", channels, chunk * _KIB))
        for function, (several, chunks) in _SIMPLE.items()
        for channels in several
        for chunk in chunks
    ]
    for channels in (8, 32):
        tree = Answer("tree", "simple", channels, 512 * _KIB)
        cases.append(CollectiveCase("all-reduce", tree))
        cases += [
            CollectiveCase(function, Answer("ring", protocol, channels))
            for function in ("all-gather", "all-reduce")
            for protocol in ("ll", "ll128")
        ]
    random.Random(1).shuffle(cases)
    return cases
