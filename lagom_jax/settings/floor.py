"""The shortest that a schedule can become, whichever candidates are chosen."""

from __future__ import annotations

import dataclasses

from lagom_jax.cost.prices import Price
from lagom_jax.cost.replay import replay
from lagom_jax.hlo.collective import Collective
from lagom_jax.program.program import Kernel
from lagom_jax.settings.stage import Stage


@dataclasses.dataclass(frozen=True, slots=True)
class Fastest:
    """Every collective at the fastest of its candidates."""

    stage: Stage

    def kernel(self, kernel: Kernel) -> Price:
        """As it is: no setting changes a kernel alone."""
        return Price(self.stage.kernel(kernel)[0], "")

    def collective(self, collective: Collective) -> Price:
        """The least over all candidates."""
        candidates = range(self.stage.candidates_of(collective))
        prices = (self.stage.price(collective, each) for each in candidates)
        return min(prices, key=lambda price: price.seconds)


def floors(stage: Stage) -> tuple[float, ...]:
    """For each scene the least seconds of one execution.

    The schedule stays; every collective takes the least time that any candidate gives
    it, and nothing is in anything's way. As no task then ends later than it can, no
    choice makes a step shorter than the sum of its scenes' floors.
    """
    prices = Fastest(stage)
    return tuple(replay(scene.program, prices).step_seconds for scene in stage.scenes)


def floor_seconds(stage: Stage, of_scenes: tuple[float, ...] = ()) -> float:
    """A lower bound of the step's time under every choice.

    Args:
        stage: The step.
        of_scenes: What `floors` says of it, where that is known.
    """
    least = of_scenes or floors(stage)
    return sum(s.times * floor for s, floor in zip(stage.scenes, least, strict=True))
