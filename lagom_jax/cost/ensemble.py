"""An ensemble: models of one cluster that all agree with what is known of it.

The likeliest model says how long a step takes; the others, whose constants are drawn
from what measurements and estimates leave open (`drawn.py`), say how sure that is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Final

from lagom_jax.cluster import Cluster
from lagom_jax.cost.drawn import drawn
from lagom_jax.cost.draws import Draws
from lagom_jax.cost.model import CostModel
from lagom_jax.hlo.collective import Collective
from lagom_jax.plan.interval import Interval
from lagom_jax.plan.setting import Setting

MEMBERS: Final = 20
"""Of an ensemble, unless something else is asked for."""


@dataclasses.dataclass(frozen=True, slots=True)
class Ensemble:
    """The models of a cluster.

    Example:
        >>> h100 = Ensemble.of(Cluster.parse("h100:1x8"))
        >>> len(h100.members), h100.likeliest.constants.gpu
        (20, 'h100')
    """

    likeliest: CostModel
    members: tuple[CostModel, ...]

    @classmethod
    def of(
        cls, cluster: Cluster, nccl: str = "", members: int = MEMBERS, seed: int = 0
    ) -> Ensemble:
        """The ensemble of a cluster: the same one wherever it is asked for.

        Args:
            cluster: What programs run on.
            nccl: NCCL's version, as `CostModel.of` takes it.
            members: How many models, beside the likeliest.
            seed: Another one draws others.
        """
        return cls.around(CostModel.of(cluster, nccl), members, seed)

    @classmethod
    def around(
        cls, model: CostModel, members: int = MEMBERS, seed: int = 0
    ) -> Ensemble:
        """The ensemble around a model, under the same settings.

        Args:
            model: The likeliest.
            members: How many others.
            seed: Another one draws others.
        """
        found = drawn(model.constants, model.cluster.gpu, Draws(members, seed))
        others = tuple(
            CostModel(model.cluster, constants, model.settings) for constants in found
        )
        return cls(model, others)

    def led_by(self, number: int) -> Ensemble:
        """The same models, of which another one is taken for the likeliest.

        Args:
            number: Its place among the members, which the likeliest takes.

        Example:
            >>> h100 = Ensemble.of(Cluster.parse("h100:1x8"), members=2)
            >>> led = h100.led_by(1)
            >>> led.likeliest is h100.members[1], led.members[1] is h100.likeliest
            (True, True)
        """
        members = list(self.members)
        likeliest, members[number] = members[number], self.likeliest
        return Ensemble(likeliest, tuple(members))

    def under(self, settings: Mapping[Collective, Setting]) -> Ensemble:
        """The same models with other settings for some collectives."""
        return Ensemble(
            self.likeliest.under(settings),
            tuple(member.under(settings) for member in self.members),
        )

    def interval(self, figure: Callable[[CostModel], float]) -> Interval:
        """A figure with its interval.

        Args:
            figure: What a model says.

        Example:
            >>> from lagom_jax.hlo.work import Work
            >>> from lagom_jax.program.program import Kernel
            >>> copy = Kernel("c", Work("copy", 0.0, 1 << 28, 1 << 28))
            >>> models = Ensemble.of(Cluster.parse("h100:1x8"))
            >>> found = models.interval(lambda model: model.kernel(copy).seconds)
            >>> found.low < found.expected < found.high
            True
        """
        return Interval.of(
            figure(self.likeliest), [figure(member) for member in self.members]
        )
