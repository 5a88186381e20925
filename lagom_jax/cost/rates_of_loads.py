"""The speeds of tasks that share a GPU, each worked out once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from lagom_jax.cluster import Gpu
from lagom_jax.cost.contention import Rates
from lagom_jax.cost.loads import CollectiveLoad, KernelLoad
from lagom_jax.cost.sharing import SharedWith
from lagom_jax.cost.sharing_constants import SharingConstants
from lagom_jax.hlo.collective import Collective
from lagom_jax.program.program import Kernel, Task

NOTHING: Final = 0
"""The number of the load of what takes nothing of the GPU."""
_Load: TypeAlias = KernelLoad | CollectiveLoad | None
_Flying: TypeAlias = tuple[CollectiveLoad | None, ...]


class RatesOfLoads:
    """The speeds of tasks by what they take of a GPU, each worked out once."""

    def __init__(self, gpu: Gpu, constants: SharingConstants) -> None:
        self._gpu = gpu
        self._constants = constants
        self._known: dict[tuple[_Load, _Flying], Rates] = {}
        self._known_shared: dict[_Flying, SharedWith] = {}
        self._numbers: dict[_Load, int] = {None: NOTHING}
        self._numbered: list[_Load] = [None]
        self._by_flying: dict[tuple[int, ...], Callable[[int], Rates]] = {}
        self._mixes: dict[tuple[tuple[KernelLoad, float], ...], KernelMix] = {}
        self._slowdowns: dict[CollectiveLoad, Slowdowns] = {}

    def of(self, running: _Load, flying: _Flying) -> Rates:
        """The speeds of what runs and of what flies; None takes nothing.

        Example:
            >>> from lagom_jax.cluster import Cluster
            >>> from lagom_jax.cost.sharing_constants import load_sharing_constants
            >>> gpu = Cluster.parse("h100").gpu
            >>> rates = RatesOfLoads(gpu, load_sharing_constants(gpu))
            >>> rates.of(None, (None,)).flying
            (1.0,)
        """
        key = (running, flying)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._rates_beside(flying)(running)
        return known

    def number(self, load: KernelLoad | CollectiveLoad) -> int:
        """The number of a load, by which speeds are found sooner; equal ones share it.

        Example:
            >>> from lagom_jax.cluster import Cluster
            >>> from lagom_jax.cost.sharing_constants import load_sharing_constants
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

    def beside(self, flying: tuple[int, ...]) -> Callable[[int], Rates]:
        """The same by the numbers of loads, for all that runs beside the same.

        Args:
            flying: The numbers of what flies.

        Example:
            >>> from lagom_jax.cluster import Cluster
            >>> from lagom_jax.cost.sharing_constants import load_sharing_constants
            >>> gpu = Cluster.parse("h100").gpu
            >>> rates = RatesOfLoads(gpu, load_sharing_constants(gpu))
            >>> rates.beside((NOTHING,))(NOTHING).flying
            (1.0,)
        """
        known = self._by_flying.get(flying)
        if known is None:
            numbered = self._numbered
            loads = [numbered[number] for number in flying]
            rates_of = self._rates_beside(
                tuple(o if isinstance(o, CollectiveLoad) else None for o in loads)
            )

            def rates(running: int) -> Rates:
                return rates_of(numbered[running])

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

    def slowdowns(self, beside: CollectiveLoad) -> Slowdowns:
        """The factors by which kernels and one collective slow each other.

        Args:
            beside: What the collective takes.
        """
        known = self._slowdowns.get(beside)
        if known is None:
            shared = self._shared((beside,))
            known = self._slowdowns[beside] = Slowdowns(shared, self._numbered)
        return known

    def slowdown(self, kernel: KernelLoad, beside: CollectiveLoad) -> float:
        """Slowdown of a kernel beside a collective."""
        return self.slowdowns(beside)[self.number(kernel)][0]

    def _rates_beside(self, flying: _Flying) -> Callable[[_Load], Rates]:
        shared = self._shared(flying)

        def rates(running: _Load) -> Rates:
            if isinstance(running, CollectiveLoad):
                # On whatever stream: collectives share links and memory all the same.
                own, *others = self._shared((running, *flying)).of_collectives()
                return Rates(1.0 / own, tuple([1.0 / other for other in others]))
            slower = shared.of_collectives(running)
            own = 1.0 if running is None else shared.of(running)
            return Rates(1.0 / own, tuple([1.0 / other for other in slower]))

        return rates

    def _shared(self, flying: _Flying) -> SharedWith:
        known = self._known_shared.get(flying)
        if known is None:
            known = SharedWith(flying, self._gpu, self._constants)
            self._known_shared[flying] = known
        return known


class Slowdowns(dict[int, tuple[float, float]]):
    """Of a kernel beside a collective, and of that one, by the kernel's number."""

    def __init__(self, shared: SharedWith, numbered: Sequence[_Load]) -> None:
        super().__init__()
        self._shared, self._numbered = shared, numbered

    def __missing__(self, number: int) -> tuple[float, float]:
        kernel = self._numbered[number]
        assert isinstance(kernel, KernelLoad)
        (slower,) = self._shared.of_collectives(kernel)
        found = self[number] = self._shared.of(kernel), slower
        return found


class KernelMix:
    """Kernels that collectives run beside, and what those lose."""

    def __init__(
        self, rates: RatesOfLoads, kernels: tuple[tuple[KernelLoad, float], ...]
    ) -> None:
        self._rates = rates
        self._kernels = [(rates.number(kernel), seconds) for kernel, seconds in kernels]
        self._lost: dict[CollectiveLoad, float] = {}

    def lost(self, load: CollectiveLoad) -> float:
        """Seconds that the kernels lose for each that a collective takes alone.

        Example:
            >>> from lagom_jax.cluster import Cluster
            >>> from lagom_jax.cost.sharing_constants import load_sharing_constants
            >>> from lagom_jax.cost.loads import NO_LOAD
            >>> gpu = Cluster.parse("h100").gpu
            >>> rates = RatesOfLoads(gpu, load_sharing_constants(gpu))
            >>> rates.mix({KernelLoad(0.5, 0.0, 0): 1.0}).lost(NO_LOAD)
            0.0
        """
        known = self._lost.get(load)
        if known is None:
            lost = done = 0.0
            slowdowns = self._rates.slowdowns(load)
            for number, seconds in self._kernels:
                own, beside = slowdowns[number]
                lost += seconds * (1.0 - 1.0 / own)
                done += seconds * (1.0 / beside)
            known = self._lost[load] = lost / done if done else 0.0
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
