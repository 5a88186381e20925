"""Contention of tasks on one GPU: three ways of being in the way.

- **SMs.** Each channel of a collective holds one. A kernel that arithmetic limits has
  that many fewer; on GPUs whose large kernels are persistent (one block per SM, tiles
  dealt out in rounds) the loss comes in steps of whole rounds.
- **Memory bandwidth.** A collective reads and writes what it sends and receives. It
  keeps what it asks for, and a kernel waits longer for its own bytes; collectives that
  together ask for more than there is get their parts of it.
- **Start.** A kernel that begins beside a collective begins later.
- **Cache.** What the channels hold in flight, channels times chunk, pushes out what a
  kernel meant to find again as soon as it no longer fits.

The first depends on channels alone, the last on channels times chunk, so the two can be
told apart: vary channels at a fixed product, or the chunk at fixed channels. Derivation
and what the constants were fitted to: docs/explanation/model.md.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any, Final, TypeAlias

from lagom_jax.cluster import Gpu
from lagom_jax.cost.contention import Rates
from lagom_jax.cost.loads import CollectiveLoad, KernelLoad
from lagom_jax.cost.measured import measured
from lagom_jax.hlo.collective import Collective
from lagom_jax.hlo.kinds import POINT_TO_POINT
from lagom_jax.plan.setting import PAYLOAD, Setting
from lagom_jax.program.program import Kernel, Task

# However much is taken, something is left: NCCL and XLA never stop each other.
_LEAST_SHARE = 0.05
NOTHING: Final = 0
"""The number of the load of what takes nothing of the GPU."""
_Load: TypeAlias = KernelLoad | CollectiveLoad | None
_Flying: TypeAlias = tuple[CollectiveLoad | None, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class SharingConstants:
    """Strength of the contention between tasks on one GPU."""

    persistent_kernels: bool
    """Large kernels keep one block per SM and deal out tiles in rounds."""
    saturating_sm_share: float
    """The share of the SMs that already uses all of the memory bandwidth."""
    eviction: float
    """Part, of what a kernel meant to find in the cache it reads again once twice
    as much is in flight as the cache holds."""
    start_seconds: float
    """By which a kernel beside a collective begins or ends later."""
    start_beside_all_reduce_seconds: float
    """The same beside an all-reduce in the Simple protocol."""
    ring_passes: float
    """Passes over memory for each byte that a GPU sends in a ring or a tree."""
    exchange_passes: float
    """The same for all-to-all and permutes."""

    def passes(self, kind: str, setting: Setting) -> float:
        """Passes over memory for each byte that a GPU sends.

        Args:
            kind: The kind of collective.
            setting: How it is run.
        """
        exchanged = kind in POINT_TO_POINT or kind.endswith("all-to-all")
        passes = self.exchange_passes if exchanged else self.ring_passes
        if setting.algorithm.startswith("nvls"):
            # The switch reads and writes where the data lies: no buffer in between.
            return passes - 1
        # Flags go through the buffer with the data, written there and read.
        return passes + 2 * (1 / PAYLOAD[setting.protocol] - 1)


@functools.cache
def load_sharing_constants(gpu: Gpu) -> SharingConstants:
    """The constants of a GPU: measured on it, or estimated for its generation.

    Example:
        >>> from lagom_jax.cluster import Cluster
        >>> load_sharing_constants(Cluster.parse("a40-nvlink").gpu).persistent_kernels
        False
    """
    folder = resources.files(__name__.rpartition(".")[0]) / "constants" / "estimated"
    record: dict[str, Any] = json.loads((folder / "sharing.json").read_text())
    generation = gpu.compute_capability.partition(".")[0]
    known: dict[str, bool] = record["persistent_kernels"]["value"]
    if generation not in known:
        # A newer generation is most like the newest that is known.
        generation = max(known, key=int)
    values = {name: item["value"] for name, item in record.items()}
    estimated = SharingConstants(**{**values, "persistent_kernels": known[generation]})
    return dataclasses.replace(estimated, **measured(gpu.name, "sharing"))


class RatesOfLoads:
    """The speeds of tasks by what they take of a GPU, each worked out once."""

    def __init__(self, gpu: Gpu, constants: SharingConstants) -> None:
        self._gpu = gpu
        self._constants = constants
        self._known: dict[tuple[_Load, _Flying], Rates] = {}
        self._together: dict[_Flying, tuple[float, ...]] = {}
        self._numbers: dict[_Load, int] = {None: NOTHING}
        self._numbered: list[_Load] = [None]
        self._by_flying: dict[tuple[int, ...], Callable[[int], Rates]] = {}
        self._mixes: dict[tuple[tuple[KernelLoad, float], ...], KernelMix] = {}
        self._beside: dict[_Flying, SlowdownBeside] = {}
        self._slowdowns: dict[CollectiveLoad, dict[KernelLoad, float]] = {}

    def of(self, running: _Load, flying: _Flying) -> Rates:
        """The speeds of what runs and of what flies; None takes nothing.

        Example:
            >>> from lagom_jax.cluster import Cluster
            >>> gpu = Cluster.parse("h100").gpu
            >>> rates = RatesOfLoads(gpu, load_sharing_constants(gpu))
            >>> rates.of(None, (None,)).flying
            (1.0,)
        """
        key = (running, flying)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._rates(running, flying)
        return known

    def number(self, load: KernelLoad | CollectiveLoad) -> int:
        """The number of a load, by which speeds are found sooner; equal ones share it.

        Example:
            >>> from lagom_jax.cluster import Cluster
            >>> gpu = Cluster.parse("h100").gpu
            >>> rates = RatesOfLoads(gpu, load_sharing_constants(gpu))
            >>> one, same = (KernelLoad(0.5, 0.0, 0), KernelLoad(0.5, 0.0, 0))
            >>> rates.number(one) == rates.number(same) != NOTHING
            True
        """
        known = self._numbers.get(load)
        if known is None:
            known = self._numbers[load] = len(self._numbered)
            self._numbered.append(load)
        return known

    def of_numbers(self, running: int, flying: tuple[int, ...]) -> Rates:
        """The speeds of what runs and of what flies, by the numbers of their loads."""
        return self.beside(flying)(running)

    def beside(self, flying: tuple[int, ...]) -> Callable[[int], Rates]:
        """The same for whatever runs beside the same loads.

        Args:
            flying: Their numbers.

        Example:
            >>> from lagom_jax.cluster import Cluster
            >>> gpu = Cluster.parse("h100").gpu
            >>> rates = RatesOfLoads(gpu, load_sharing_constants(gpu))
            >>> rates.beside((NOTHING,))(NOTHING).flying
            (1.0,)
        """
        known = self._by_flying.get(flying)
        if known is None:
            numbered = self._numbered
            loads = tuple(
                load if isinstance(load, CollectiveLoad) else None
                for load in map(numbered.__getitem__, flying)
            )
            # What flies does not feel a kernel.
            flown, slowdown = self._of_collectives(loads), self._slowdown_beside(loads)

            def rates(running: int) -> Rates:
                load = numbered[running]
                if isinstance(load, KernelLoad):
                    return Rates(1.0 / slowdown.of(load), flown)
                return self._rates(load, loads)

            known = self._by_flying[flying] = rates
        return known

    def mix(self, kernels: Mapping[KernelLoad, float]) -> KernelMix:
        """Kernels that collectives run beside; equal ones share what is worked out.

        Args:
            kernels: Seconds of kernels, by what these need of the GPU.
        """
        key = tuple(kernels.items())
        known = self._mixes.get(key)
        if known is None:
            known = self._mixes[key] = KernelMix(self, key)
        return known

    def slowdown(self, kernel: KernelLoad, beside: CollectiveLoad) -> float:
        """Slowdown of a kernel beside a collective."""
        known = self._slowdowns.get(beside)
        if known is None:
            known = self._slowdowns[beside] = {}
        found = known.get(kernel)
        if found is None:
            found = known[kernel] = self._slowdown_beside((beside,)).of(kernel)
        return found

    def _rates(self, running: _Load, flying: _Flying) -> Rates:
        if isinstance(running, CollectiveLoad):
            # On whatever stream: collectives share links and memory all the same.
            own, *others = self._of_collectives((running, *flying))
            return Rates(own, tuple(others))
        # What flies does not feel a kernel.
        rates = self._of_collectives(flying)
        if running is None:
            return Rates(1.0, rates)
        return Rates(1.0 / self._slowdown_beside(flying).of(running), rates)

    def _slowdown_beside(self, flying: _Flying) -> SlowdownBeside:
        known = self._beside.get(flying)
        if known is None:
            loads = [load for load in flying if load is not None]
            known = SlowdownBeside(loads, self._gpu, self._constants)
            self._beside[flying] = known
        return known

    def _of_collectives(self, together: _Flying) -> tuple[float, ...]:
        known = self._together.get(together)
        if known is None:
            loads = [load for load in together if load is not None]
            known = self._together[together] = tuple(
                1.0
                if load is None
                else 1.0 / collective_slowdown(load, loads, self._gpu)
                for load in together
            )
        return known


class KernelMix:
    """Kernels that collectives run beside, and what those lose."""

    def __init__(
        self, rates: RatesOfLoads, kernels: tuple[tuple[KernelLoad, float], ...]
    ) -> None:
        self._rates, self._kernels = rates, kernels
        self._total = sum(seconds for _, seconds in kernels)
        self._lost: dict[CollectiveLoad, float] = {}

    def lost(self, load: CollectiveLoad) -> float:
        """The part of a collective's time that the kernels lose.

        Example:
            >>> from lagom_jax.cluster import Cluster
            >>> from lagom_jax.cost.loads import NO_LOAD
            >>> gpu = Cluster.parse("h100").gpu
            >>> rates = RatesOfLoads(gpu, load_sharing_constants(gpu))
            >>> rates.mix({KernelLoad(0.5, 0.0, 0): 1.0}).lost(NO_LOAD)
            0.0
        """
        known = self._lost.get(load)
        if known is None:
            slowdown = self._rates.slowdown
            known = sum(
                seconds * (1.0 - 1.0 / slowdown(kernel, load))
                for kernel, seconds in self._kernels
            )
            known = self._lost[load] = known / self._total if self._total else 0.0
        return known


class SharedGpu:
    """Contention on the GPUs of one cluster."""

    def __init__(
        self,
        rates: RatesOfLoads,
        kernels: Callable[[Kernel], KernelLoad],
        collectives: Callable[[Collective], CollectiveLoad],
    ) -> None:
        self.of_loads = rates
        """The speeds by what tasks take of the GPU."""
        self._kernels = kernels
        self._collectives = collectives

    def slowdown(self, kernel: KernelLoad, beside: CollectiveLoad) -> float:
        """Slowdown of a kernel beside a collective."""
        return self.of_loads.slowdown(kernel, beside)

    def rates(self, running: Task | None, flying: tuple[Task, ...]) -> Rates:
        """The speeds of what the compute stream runs, and of tasks on other streams."""
        return self.of_loads.of(
            self._kernels(running)
            if isinstance(running, Kernel)
            else running and self._collectives(running),
            tuple(
                self._collectives(task) if isinstance(task, Collective) else None
                for task in flying
            ),
        )


class SlowdownBeside:
    """Slowdown of kernels beside collectives that run at the same time."""

    def __init__(
        self, beside: Sequence[CollectiveLoad], gpu: Gpu, constants: SharingConstants
    ) -> None:
        """Works out what the collectives take together.

        Args:
            beside: What runs at the same time on other streams.
            gpu: The GPU they share with the kernels.
            constants: How strongly they feel each other.
        """
        self._gpu, self._constants = gpu, constants
        channels = sum(load.channels for load in beside)
        self._sms_left = gpu.sm_count - min(channels, gpu.sm_count - 1)
        self._memory_left = max(_LEAST_SHARE, 1.0 - memory_share(beside, gpu))
        self._read_again = constants.eviction * cache_overflow(beside, gpu)
        self._start = start_delay(beside, constants)

    def of(self, kernel: KernelLoad) -> float:
        """The factor by which a kernel takes longer; at least 1.

        Example:
            >>> from lagom_jax.cluster import Cluster
            >>> gpu = Cluster.parse("h100").gpu
            >>> alone = SlowdownBeside([], gpu, load_sharing_constants(gpu))
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
    # A kernel pays for what they share by itself: neither pays twice.
    return max(1.0, on_link, memory_share(all_loads, gpu))
