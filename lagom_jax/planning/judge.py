"""What a compiled program is worth: replayed with the best settings of its own."""

from __future__ import annotations

import copy
import dataclasses

from lagom_jax.cluster import Cluster
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.prices import Prices
from lagom_jax.cost.replay import replay
from lagom_jax.cost.timeline import Timeline
from lagom_jax.hlo import Module
from lagom_jax.hlo.collective import Collective
from lagom_jax.levers import Structure, structure_of
from lagom_jax.measure import Calibration
from lagom_jax.ordering import Ordering, find_order
from lagom_jax.schedule.build import build_program
from lagom_jax.schedule.program import Program
from lagom_jax.scheduled import Scheduled
from lagom_jax.search.controls import FINE, Controls
from lagom_jax.search.lagom import Lagom
from lagom_jax.search.tuning import Tuning, tune_program


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class View:
    """A compiled program as the model sees it."""

    scheduled: Scheduled
    program: Program
    timeline: Timeline
    """With NCCL's own choices."""
    structure: Structure
    tuning: Tuning

    @property
    def default_seconds(self) -> float:
        """With everything left to NCCL."""
        return self.tuning.before.step_seconds

    @property
    def tuned_seconds(self) -> float:
        """With the settings that were found for it."""
        return self.tuning.after.step_seconds


class Judge:
    """Looks at programs for one cluster, with one model and the same controls."""

    def __init__(
        self,
        cluster: Cluster,
        controls: Controls,
        calibration: Calibration | None = None,
        *,
        streams: bool = False,
    ) -> None:
        """Sets the model up.

        Args:
            cluster: What the programs run on.
            controls: What NCCL can be told.
            calibration: Corrections to the model.
            streams: Whether collectives may have a second stream in another order.
        """
        self._streams = streams
        self.model = CostModel.of(cluster)
        self._cluster = cluster
        self._controls = controls
        self._correction = calibration and calibration.apply(
            self.model, cluster, self.model.digest
        )
        self.pricing = self.model.source
        if calibration is not None:
            self.pricing = calibration.pricing(self.pricing)

    def coarsest(self) -> Judge:
        """One that tells the least apart; itself where nothing tells less."""
        controls = self._controls
        while (fewer := controls.coarser()) is not None:
            controls = fewer
        if controls is self._controls:
            return self
        other = copy.copy(self)
        other._controls = controls
        return other

    def correct(self, prices: Prices) -> Prices:
        """What the user's own measurements make of the model's prices."""
        if self._correction is None:
            return prices
        return dataclasses.replace(self._correction, base=prices)

    def seconds(self, site: Collective) -> float:
        """What a collective takes alone with NCCL's own choice."""
        return self.correct(self.model).collective(site).seconds

    def look(self, scheduled: Scheduled) -> View:
        """Replays a program, and finds the settings that make it shortest."""
        program = build_program(scheduled.module)
        timeline = replay(program, self.correct(self.model), self.model.contention())
        tuning = tune_program(
            program,
            self._cluster,
            self.model,
            controls=self._controls,
            policies=[Lagom()],
            correct=self.correct,
            pricing=self.pricing,
            name=scheduled.name,
            description=scheduled.description,
            versions=tuple(sorted(scheduled.versions.items())),
            notes=scheduled.notes,
        )
        return View(scheduled, program, timeline, structure_of(program), tuning)

    def order(
        self, module: Module, *, spare_bytes: int | None, evaluations: int
    ) -> Ordering:
        """Looks for another order of a module that XLA's scheduler has left.

        Args:
            module: The module as the scheduler left it.
            spare_bytes: What the program may take more than it does.
            evaluations: Orders that may be tried.
        """
        return find_order(
            module,
            self._cluster,
            self.model,
            controls=self._controls,
            grid=FINE,
            correct=self.correct,
            spare_bytes=spare_bytes,
            evaluations=evaluations,
            streams=self._streams,
        )
