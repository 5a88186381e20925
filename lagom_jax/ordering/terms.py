"""What tasks cost and take, under settings that change as a search goes on."""

from __future__ import annotations

from collections.abc import Hashable

from lagom_jax.cluster import Cluster
from lagom_jax.cost.contention import Rates
from lagom_jax.cost.loads import CollectiveLoad, KernelLoad
from lagom_jax.cost.prices import Price
from lagom_jax.cost.sharing import RatesOfLoads, load_sharing_constants
from lagom_jax.hlo.collective import Collective
from lagom_jax.schedule.program import Kernel, Task
from lagom_jax.search.space import Choice
from lagom_jax.search.stage import Stage


class Terms:
    """Prices and contention of a stage's tasks under a choice, one group at a time.

    It is a pricing and a contention model at once, so a replay can ask it for both.
    """

    def __init__(self, stage: Stage, cluster: Cluster, choice: Choice) -> None:
        """Begins with a choice.

        Args:
            stage: What can be set, and the model's answers.
            cluster: What the program runs on.
            choice: For each group of the stage its candidate.
        """
        self._stage = stage
        self.choice = list(choice)
        self.known: dict[Task, Price] = {}
        """The prices under the present choice of all tasks that were asked for."""
        self._sharing = RatesOfLoads(cluster.gpu, load_sharing_constants(cluster.gpu))
        self._group: dict[Collective, int] = {
            site: number
            for number, group in enumerate(stage.space.groups)
            for site in group.sites
        }
        self._ids: dict[Hashable, int] = {}
        self._kernels: dict[Kernel, int] = {}
        self._flying: dict[Task, int] = {}
        self._loads: list[KernelLoad | CollectiveLoad | None] = []
        self._rates: dict[tuple[int, ...], Rates] = {}
        self._of_sites: dict[tuple[Collective, int], tuple[Price, int]] = {}
        self._nothing = self._id(None)

    def group(self, site: Collective) -> int | None:
        """The group of a collective; None where nothing can be set."""
        return self._group.get(site)

    def choose(self, group: int, candidate: int) -> None:
        """Sets a group."""
        self.choice[group] = candidate
        for site in self._stage.space.groups[group].sites:
            if site in self.known:
                self.known[site], self._flying[site] = self._at(site, candidate)

    def adopt(self, choice: Choice) -> None:
        """Sets all groups."""
        for group, candidate in enumerate(choice):
            if self.choice[group] != candidate:
                self.choose(group, candidate)

    def kernel(self, kernel: Kernel) -> Price:
        """The price of a kernel alone."""
        return Price(self._stage.kernel(kernel)[0], "")

    def collective(self, collective: Collective) -> Price:
        """The price of a collective alone, as it is set."""
        group = self._group.get(collective)
        candidate = 0 if group is None else self.choice[group]
        price, self._flying[collective] = self._at(collective, candidate)
        return price

    def rates(self, kernel: Kernel | None, flying: tuple[Task, ...]) -> Rates:
        """The speeds of a kernel and of the tasks under way on other streams."""
        known = self._flying
        if kernel is None:
            own = self._nothing
        else:
            found = self._kernels.get(kernel)
            own = self._kernel_id(kernel) if found is None else found
        key = (own, *[known.get(task, 0) for task in flying])
        rates = self._rates.get(key)
        if rates is None:
            rates = self._rates[key] = self._work_out(key)
        return rates

    def _work_out(self, key: tuple[int, ...]) -> Rates:
        own, *others = (self._loads[number] for number in key)
        assert not isinstance(own, CollectiveLoad)
        flying = tuple(o if isinstance(o, CollectiveLoad) else None for o in others)
        return self._sharing.of(own, flying)

    def _kernel_id(self, kernel: Kernel) -> int:
        self._kernels[kernel] = self._id(self._stage.kernel(kernel)[1])
        return self._kernels[kernel]

    def _at(self, site: Collective, candidate: int) -> tuple[Price, int]:
        known = self._of_sites.get((site, candidate))
        if known is None:
            price = self._stage.price(site, candidate)
            known = price, self._id(self._stage.load(site, candidate))
            self._of_sites[site, candidate] = known
        return known

    def _id(self, load: KernelLoad | CollectiveLoad | None) -> int:
        """A number that stands for all loads that are equal; 0 takes nothing."""
        known = self._ids.get(load)
        if known is None:
            known = self._ids[load] = len(self._loads)
            self._loads.append(load)
        return known
