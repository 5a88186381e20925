"""Prices from a profile of the same program, and the model's where it has none."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Mapping

from lagom_jax.cost.prices import Price, Prices
from lagom_jax.cost.replay import price_of
from lagom_jax.hlo.collective import Collective
from lagom_jax.measurements.executions import Measured
from lagom_jax.measurements.xplane import MeasuredStep
from lagom_jax.program.program import Kernel, Program, Task


@dataclasses.dataclass(frozen=True, slots=True)
class Overlay:
    """Prices of which some were measured.

    Example:
        >>> from lagom_jax.hlo.work import Work
        >>> class OneSecond:
        ...     def kernel(self, kernel): return Price(1.0, "memory", 0.5)
        ...     def collective(self, collective): return Price(1.0, "nvlink")
        >>> prices = Overlay(OneSecond(), {"fusion.1": 2.0})
        >>> prices.kernel(Kernel("fusion.1", Work("fusion", 0.0, 1, 1)))
        Price(seconds=2.0, bound='memory', resource_share=0.25)
    """

    base: Prices
    seconds: Mapping[str, float]
    """Measured seconds of one execution, by the task's name."""

    def kernel(self, kernel: Kernel) -> Price:
        """The price of a kernel alone."""
        return rescaled(self.base.kernel(kernel), self.seconds.get(kernel.name))

    def collective(self, collective: Collective) -> Price:
        """The price of a collective alone."""
        price = self.base.collective(collective)
        return rescaled(price, self.seconds.get(collective.name))


def rescaled(price: Price, seconds: float | None) -> Price:
    """A price with another time; the same limit is then used more or less."""
    if seconds is None or seconds == price.seconds:
        return price
    share = price.resource_share * price.seconds / seconds if seconds else 0.0
    return dataclasses.replace(price, seconds=seconds, resource_share=min(1.0, share))


@dataclasses.dataclass(frozen=True, slots=True)
class Match:
    """Tasks of a program, matched with the measurements of a profile."""

    measured: Mapping[Task, Measured]
    seconds: Mapping[str, float]
    """Seconds of one execution as the program counts them, by the task's name."""
    tasks: int
    """Tasks in the program."""
    share: float
    """The part of the tasks' predicted time that was measured, from 0 to 1."""

    def words(self) -> str:
        """The measured part of the program, in words."""
        return (
            f"{len(self.measured)} of {self.tasks} instructions, "
            f"{self.share:.0%} of their predicted time"
        )


def match(program: Program, step: MeasuredStep, prices: Prices) -> Match:
    """Finds the tasks of a program in a profile, by their names.

    An instruction is known by its own name; where the profile has another spelling of
    it (`all-gather.1` for `all-gather-start.1`, or a kernel `loop_fusion_3` of
    `loop_fusion.3`), by that, if it is the only one.

    Args:
        program: The program, as it was compiled for the run that was profiled.
        step: What the profile says.
        prices: The model's prices, to weigh with.
    """
    tasks: dict[Task, float] = {}
    for task, runs, _ in program.tasks():
        tasks[task] = tasks.get(task, 0.0) + runs
    aliases = _aliases([*step.instructions.values(), *step.nameless.values()])
    names = Counter(_alias(task.name) for task in tasks)
    measured: dict[Task, Measured] = {}
    seconds: dict[str, float] = {}
    total = known = 0.0
    for task, runs in tasks.items():
        price = price_of(task, prices)
        predicted = price.seconds * runs
        total += predicted
        found = step.instructions.get(task.name)
        if found is None and names[_alias(task.name)] == 1:
            found = aliases.get(_alias(task.name))
        if found is not None and runs and found.median > 0:
            # One run of the task may have launched the same kernel several times.
            repeats = max(1, round(found.per_step / runs))
            measured[task] = found
            # A profile has kernels without the gaps between them.
            seconds[task.name] = (found.median + price.gap_seconds) * repeats
            known += predicted
    return Match(measured, seconds, len(tasks), known / total if total else 0.0)


def _alias(name: str) -> str:
    return re.sub(r"[^0-9a-z]+", "_", name.lower().replace("-start", ""))


def _aliases(found: Iterable[Measured]) -> dict[str, Measured]:
    by_alias: dict[str, Measured] = {}
    twice: set[str] = set()
    for one in found:
        alias = _alias(one.name)
        twice |= {alias} & by_alias.keys()
        by_alias[alias] = one
    return {alias: one for alias, one in by_alias.items() if alias not in twice}
