"""Contention of tasks on one GPU: ways of being in the way.

- **SMs.** Each channel of a collective holds one. A kernel that arithmetic limits has
  that many fewer; on GPUs whose large kernels are persistent (one block per SM, tiles
  dealt out in rounds) the loss comes in steps of whole rounds.
- **Memory bandwidth.** A collective reads and writes what it sends and receives. A
  kernel waits for these bytes, and the collective for the kernel's; collectives that
  together ask for more than there is get their parts of it.
- **Start.** A kernel that begins beside a collective begins later.
- **Cache.** What the channels hold in flight, channels times chunk, pushes out what a
  kernel meant to find again as soon as it no longer fits.

The first depends on channels alone, the last on channels times chunk, so the two can be
told apart: vary channels at a fixed product, or the chunk at fixed channels. Derivation
and what the constants were fitted to: docs/explanation/model.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from lagom_jax.cluster import Gpu
from lagom_jax.cost.loads import CollectiveLoad, KernelLoad
from lagom_jax.cost.sharing_constants import SharingConstants

# However much is taken, something is left: NCCL and XLA never stop each other.
_LEAST_SHARE = 0.05
# The largest share of the memory bandwidth that was seen of a kernel beside a
# collective: one with more is not waited for longer.
_MOST_WAITED_FOR = 0.8


class SharedWith:
    """A GPU with collectives on it: slowdowns of what runs, and of themselves."""

    def __init__(
        self,
        collectives: Sequence[CollectiveLoad | None],
        gpu: Gpu,
        constants: SharingConstants,
    ) -> None:
        """Works out what the collectives take together.

        Args:
            collectives: What is under way on other streams; None takes nothing.
            gpu: The GPU that all share.
            constants: How strongly they feel each other.
        """
        self._gpu, self._constants = gpu, constants
        beside = [load for load in collectives if load is not None]
        channels = sum(load.channels for load in beside)
        self._sms_left = gpu.sm_count - min(channels, gpu.sm_count - 1)
        self._memory_left = max(_LEAST_SHARE, 1.0 - memory_share(beside, gpu))
        self._read_again = constants.eviction * cache_overflow(beside, gpu)
        self._start = start_delay(beside, constants)
        self._by_each_other = [
            1.0 if load is None else collective_slowdown(load, beside, gpu)
            for load in collectives
        ]
        self._waiting = [
            0.0
            if load is None
            else constants.waits_for_kernels * memory_share([load], gpu)
            for load in collectives
        ]

    def of_collectives(self, kernel: KernelLoad | None = None) -> list[float]:
        """The factors by which the collectives take longer; 1 for what is none.

        The part of its time in which a collective uses memory stretches beside a kernel
        as a kernel's does beside a collective.

        Args:
            kernel: What runs beside them; None while nothing does.

        Example:
            >>> from lagom_jax.cluster import Cluster
            >>> from lagom_jax.cost.sharing_constants import load_sharing_constants
            >>> gpu = Cluster.parse("h100").gpu
            >>> load = CollectiveLoad(8, 1 << 19, 0.1 * gpu.memory_bytes_per_s, "", 0.5)
            >>> shared = SharedWith([load], gpu, load_sharing_constants(gpu))
            >>> [round(x, 3) for x in shared.of_collectives(KernelLoad(0.5, 0.0, 0))]
            [1.1]
        """
        if kernel is None:
            return self._by_each_other
        share = min(_MOST_WAITED_FOR, kernel.memory_share)
        waits = share / (1.0 - share)
        return [
            slower + own * waits
            for slower, own in zip(self._by_each_other, self._waiting, strict=True)
        ]

    def of(self, kernel: KernelLoad) -> float:
        """The factor by which a kernel takes longer beside the collectives.

        Example:
            >>> from lagom_jax.cluster import Cluster
            >>> from lagom_jax.cost.sharing_constants import load_sharing_constants
            >>> gpu = Cluster.parse("h100").gpu
            >>> alone = SharedWith([], gpu, load_sharing_constants(gpu))
            >>> alone.of(KernelLoad(0.9, 2.0, 1000))
            1.0
        """
        # What a kernel asks of the memory is spread over the time that fewer SMs take,
        # so what it waits for its bytes adds to that time as it would with all of them.
        waits = self.by_memory(kernel) - 1.0
        return self.by_sms(kernel) + waits + self._start / kernel.seconds

    def by_sms(self, kernel: KernelLoad) -> float:
        """The part that comes from SMs that are taken."""
        sms, left = self._gpu.sm_count, self._sms_left
        if not kernel.tiles:
            # Memory limits it: fewer SMs only matter where they no longer ask enough
            # of it.
            return max(1.0, self._constants.saturating_sm_share * sms / left)
        rounds = math.ceil(kernel.tiles / sms)
        whole = max(1.0, math.ceil(kernel.tiles / left) / rounds)
        if self._constants.persistent_kernels:
            return whole
        # Blocks that are dealt out as SMs come free: of few, a last round may be added.
        return max(whole, min(kernel.tiles, sms) / left)

    def by_memory(self, kernel: KernelLoad) -> float:
        """The part that comes from memory bandwidth and cache."""
        stretched = (1.0 + self._read_again * kernel.reuse) / self._memory_left
        return 1.0 + kernel.memory_share * (stretched - 1.0)


def start_delay(beside: Sequence[CollectiveLoad], constants: SharingConstants) -> float:
    """Seconds that a kernel beside collectives loses, however long it is."""
    delays = [
        (
            constants.start_beside_all_reduce_seconds
            if load.reduces_in_full
            else constants.start_seconds
        )
        * load.busy
        for load in beside
        if load.channels
    ]
    return max(delays, default=0.0)


def memory_share(beside: Sequence[CollectiveLoad], gpu: Gpu) -> float:
    """The part of the memory bandwidth that collectives ask for together."""
    return sum(load.memory_bytes_per_s for load in beside) / gpu.memory_bytes_per_s


def cache_overflow(beside: Sequence[CollectiveLoad], gpu: Gpu) -> float:
    """0 while the cache holds what is in flight, 1 when that is twice as much.

    Example:
        >>> from lagom_jax.cluster import Cluster
        >>> a40 = Cluster.parse("a40-nvlink").gpu
        >>> def overflow(channels, chunk_bytes):
        ...     load = CollectiveLoad(channels, chunk_bytes, 1e11, "nvlink", 0.5)
        ...     return cache_overflow([load], a40)
        >>> overflow(4, 1366 << 10), overflow(8, 2 << 20)
        (0.0, 1.0)
    """
    in_flight = sum(load.bytes_in_flight for load in beside)
    if in_flight <= gpu.l2_bytes:
        return 0.0
    # While a collective waits, nothing of what it holds is touched.
    busy = sum(load.bytes_in_flight * load.busy for load in beside) / in_flight
    return busy * min(1.0, in_flight / gpu.l2_bytes - 1.0)


def collective_slowdown(
    load: CollectiveLoad,
    all_loads: Sequence[CollectiveLoad],
    gpu: Gpu,
) -> float:
    """Slowdown of a collective beside other collectives.

    Args:
        load: What the collective takes.
        all_loads: Every collective under way on any stream, itself included.
        gpu: The GPU they share.
    """
    on_link = sum(other.link_share for other in all_loads if other.link == load.link)
    return max(1.0, on_link, memory_share(all_loads, gpu))
