"""Loads of tasks on a GPU: SMs, memory bandwidth, cache, links."""

from __future__ import annotations

import dataclasses
import math

from lagom_jax.cluster import Gpu
from lagom_jax.cost.prices import Price
from lagom_jax.hlo.elements import element_bytes
from lagom_jax.hlo.work import Work

# Tiles of the large matmul kernels; which of them a library picks, few waves decide.
_TILE_ROWS, _TILE_COLUMNS = 128, 128


@dataclasses.dataclass(frozen=True, slots=True)
class KernelLoad:
    """Load of a kernel on a GPU."""

    memory_share: float
    """The part of the memory bandwidth it uses when it runs alone, 0 to 1."""
    reuse: float
    """Number of times that it finds in the cache what it has read once; 0 for a kernel
    that reads everything once."""
    tiles: int
    """Blocks that it cuts its result into where arithmetic limits it, for as many SMs
    as it gets; 0 where the number of SMs hardly matters."""
    seconds: float = math.inf
    """Of the kernel alone."""


@dataclasses.dataclass(frozen=True, slots=True)
class CollectiveLoad:
    """Load of a collective under a setting."""

    channels: int
    """SMs that its thread blocks hold."""
    chunk_bytes: int
    memory_bytes_per_s: float
    """Rate at which it reads and writes in the GPU's memory when it runs alone."""
    link: str
    """The kind of link that limits it."""
    link_share: float
    """The part, of what large messages reach of that link, that it uses when it runs
    alone, 0 to 1."""
    busy: float = 1.0
    """The part of its time in which it moves data and does not wait, 0 to 1."""
    reduces_in_full: bool = False
    """True for an all-reduce in the Simple protocol, whose blocks move and add."""

    @property
    def bytes_in_flight(self) -> int:
        """Bytes that its channels hold at a time, and with it in cache."""
        return self.channels * self.chunk_bytes


NO_LOAD = CollectiveLoad(0, 0, 0.0, "", 0.0)
"""Of what takes nothing of a GPU."""


def kernel_load(work: Work, price: Price, gpu: Gpu) -> KernelLoad:
    """Load of a kernel, from its work and its price alone.

    Example:
        >>> from lagom_jax.cluster import Cluster
        >>> gpu = Cluster.parse("h100").gpu
        >>> copied = Work("copy", 0.0, 1 << 30, 1 << 30)
        >>> kernel_load(copied, Price(2**31 / gpu.memory_bytes_per_s, "memory"), gpu)
        KernelLoad(memory_share=1.0, reuse=0.0, tiles=0, seconds=0.000...)
    """
    seconds = max(price.seconds, 1e-12)
    share = work.hbm_bytes / (gpu.memory_bytes_per_s * seconds)
    tiles = _tiles(work) if price.bound == "arithmetic" else 0
    return KernelLoad(min(1.0, share), _reuse(work), tiles, seconds)


def _reuse(work: Work) -> float:
    """Reads of the operands by tiles, over reads from memory, beyond the first."""
    by_tiles = sum(
        m.batch
        * m.k
        * (
            m.m * element_bytes(m.lhs) * -(-m.n // _TILE_COLUMNS)
            + m.n * element_bytes(m.rhs) * -(-m.m // _TILE_ROWS)
        )
        for m in work.matmuls
    )
    return max(0.0, by_tiles / max(1, work.hbm_bytes) - 1.0)


def _tiles(work: Work) -> int:
    return sum(
        m.batch * -(-m.m // _TILE_ROWS) * -(-m.n // _TILE_COLUMNS) for m in work.matmuls
    )


def memory_rate(sent_bytes: float, seconds: float, passes: float) -> float:
    """Bytes per second that a collective moves through memory, alone.

    Args:
        sent_bytes: What each GPU sends over its links.
        seconds: How long that takes alone.
        passes: Over memory, for each byte sent.

    Example:
        >>> memory_rate(1e9, 0.01, 3.0)
        300000000000.0
    """
    return passes * sent_bytes / max(seconds, 1e-12)
