"""Terms of tasks: seconds and loads under settings that change as a search goes on.

Tasks have numbers, and so have the loads that they put on the GPU, where loads that are
equal share one: replays in a search then look things up by small integers.
"""

from __future__ import annotations

import copy

from lagom_jax.cost.contention import Rates
from lagom_jax.cost.prices import Price
from lagom_jax.cost.rates_of_loads import NOTHING
from lagom_jax.hlo.collective import Collective
from lagom_jax.program.program import Kernel, Task
from lagom_jax.settings.space import Choice
from lagom_jax.settings.stage import Stage


class Terms:
    """Prices and contention of a stage's tasks under a choice, one group at a time.

    It is a pricing and a contention model at once, so a replay can ask it for both.
    """

    def __init__(self, stage: Stage, choice: Choice) -> None:
        """Begins with a choice.

        Args:
            stage: What can be set, and the model's answers.
            choice: For each group of the stage its candidate.
        """
        self._stage = stage
        self.changes = 0
        """Times that a group was set."""
        self.choice = list(choice)
        self.known: dict[Task, Price] = {}
        """The prices under the present choice of all tasks that were asked for."""
        self.seconds: list[float] = []
        """By number of a task what it takes alone, under the present choice."""
        self.loads: list[int] = []
        """By number of a task its load, likewise: a kernel's on a stream of its own."""
        self.speeds: dict[tuple[int, ...], tuple[float, ...]] = {}
        """Answers of `between`."""
        self._group: dict[Collective, int] = {
            site: number
            for number, group in enumerate(stage.space.groups)
            for site in group.sites
        }
        self._numbers: dict[Task, int] = {}
        self.followers: tuple[Terms, ...] = ()
        """Terms by other models, whose groups are set as these are."""

    def under(self, choice: Choice) -> Terms:
        """The same under another choice; what either works out, the other knows."""
        other = copy.copy(self)
        other.choice, other.known, other._numbers = list(choice), {}, {}
        other.seconds, other.loads = [], []
        return other

    def group(self, site: Collective) -> int | None:
        """The group of a collective; None where nothing can be set."""
        return self._group.get(site)

    def choose(self, group: int, candidate: int) -> None:
        """Sets a group, here and in those that follow."""
        for follower in self.followers:
            follower.choose(group, candidate)
        self.changes += 1
        self.choice[group] = candidate
        for site in self._stage.space.groups[group].sites:
            number = self._numbers.get(site)
            if number is not None:
                terms = self._stage.collective_terms(site, candidate)
                price, self.loads[number] = terms
                self.known[site], self.seconds[number] = price, price.seconds

    def number(self, task: Task) -> int:
        """A task's number."""
        number = self._numbers.get(task)
        if number is None:
            number = self._numbers[task] = len(self.seconds)
            if isinstance(task, Kernel):
                price, load = self._stage.kernel_terms(task)[0], NOTHING
            else:
                group = self._group.get(task)
                candidate = 0 if group is None else self.choice[group]
                price, load = self._stage.collective_terms(task, candidate)
            self.known[task] = price
            self.seconds.append(price.seconds)
            self.loads.append(load)
        return number

    def kernel_load(self, kernel: Kernel) -> int:
        """The number of the load of a kernel on the compute stream."""
        return self._stage.kernel_terms(kernel)[1]

    def between(self, loads: tuple[int, ...]) -> tuple[float, ...]:
        """The speeds of what puts loads on the GPU at the same time.

        Args:
            loads: Their numbers, that of the compute stream first.
        """
        speeds = self.speeds.get(loads)
        if speeds is None:
            own, *flying = loads
            rates = self._stage.between(own, tuple(flying))
            speeds = self.speeds[loads] = (rates.running, *rates.flying)
        return speeds

    def kernel(self, kernel: Kernel) -> Price:
        """The price of a kernel alone."""
        self.number(kernel)
        return self.known[kernel]

    def collective(self, collective: Collective) -> Price:
        """The price of a collective alone, as it is set."""
        self.number(collective)
        return self.known[collective]

    def rates(self, running: Task | None, flying: tuple[Task, ...]) -> Rates:
        """The speeds of what the compute stream runs, and of tasks on other streams."""
        if running is None:
            own = NOTHING
        elif isinstance(running, Kernel):
            own = self.kernel_load(running)
        else:
            own = self.loads[self.number(running)]
        beside = [self.loads[self.number(task)] for task in flying]
        first, *others = self.between((own, *beside))
        return Rates(first, tuple(others))
