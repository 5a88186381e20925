"""A recorded step beside what the model says of it, calibrated or not."""

from __future__ import annotations

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping

from gpu_stages.profiles.recording import Recording
from gpu_stages.stage import Spread
from lagom_jax.analysis import report_scheduled
from lagom_jax.cluster import Cluster
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.prices import Prices
from lagom_jax.cost.replay import price_of
from lagom_jax.errors import MeasurementError
from lagom_jax.hlo.collective import Collective
from lagom_jax.measure.calibration import Calibration, Source
from lagom_jax.measure.executions import Measured
from lagom_jax.measure.overlay import Match, match
from lagom_jax.measure.samples import samples_of_match
from lagom_jax.measure.xplane import MeasuredStep, read_profile
from lagom_jax.schedule.build import build_program
from lagom_jax.schedule.program import Program, Task
from lagom_jax.scheduled import Scheduled, read_scheduled

_NAMED = 5


@dataclasses.dataclass(frozen=True, slots=True)
class Beside:
    """A recorded step, read."""

    recording: Recording
    scheduled: Scheduled
    program: Program
    profile: MeasuredStep
    match: Match
    model: CostModel

    @classmethod
    def read(cls, recording: Recording, cluster: Cluster) -> Beside:
        """Reads what was recorded.

        Raises:
            MeasurementError: The profile cannot be used, or is of something else.
        """
        scheduled = read_scheduled(recording.program, cluster)
        program = build_program(scheduled.module)
        profile = read_profile(recording.trace)
        model = CostModel.of(cluster)
        found = match(program, profile, model)
        if not found.measured:
            raise MeasurementError(
                f"nothing of {program.name} is in the profile {recording.trace}"
            )
        return cls(recording, scheduled, program, profile, found, model)

    def calibration(self) -> Calibration:
        """Fitted to this step alone, as `lagom calibrate --profile` does it."""
        samples = samples_of_match(self.match, self.scheduled.cluster, self.model)
        source = Source(str(self.recording.trace), "profile", len(samples))
        return Calibration.fit(
            samples, self.scheduled.cluster, model=self.model.digest, sources=[source]
        )

    def prices(self, calibration: Calibration | None) -> Prices:
        """The model's, corrected where there is a calibration."""
        if calibration is None:
            return self.model
        cluster = self.scheduled.cluster
        return calibration.apply(self.model, cluster, self.model.digest)

    def predicted(self, calibration: Calibration | None) -> float:
        """Milliseconds of the step."""
        report = report_scheduled(self.scheduled, calibration=calibration)
        return 1e3 * report.step_seconds

    def kinds(self, calibration: Calibration | None) -> Mapping[str, Kind]:
        """What each kind of kernel takes in a step, measured and predicted."""
        prices = self.prices(calibration)
        runs: defaultdict[Task, float] = defaultdict(float)
        for task, times, _ in self.program.tasks():
            runs[task] += times
        measured: defaultdict[str, list[list[float]]] = defaultdict(list)
        predicted: defaultdict[str, float] = defaultdict(float)
        for task, found in self.match.measured.items():
            kind = task.kind if isinstance(task, Collective) else task.work.kind
            measured[kind].append(self._by_step(found))
            predicted[kind] += 1e3 * price_of(task, prices).seconds * runs[task]
        return {
            kind: Kind(
                Spread.of([sum(step) for step in zip(*steps, strict=True)]),
                predicted[kind],
                len(steps),
            )
            for kind, steps in measured.items()
        }

    def busy(self) -> float:
        """Milliseconds of kernels in a step of the profile, whatever launched them."""
        return self._milliseconds(
            (*self.profile.instructions.values(), *self.profile.nameless.values())
        )

    def matched_share(self) -> float:
        """The part of the kernels' measured time that is of a known instruction."""
        return self._milliseconds(self.match.measured.values()) / self.busy()

    def unmatched(self) -> str:
        """The longest of what is of none, for people."""
        known = {found.name for found in self.match.measured.values()}
        named = [m for m in self.profile.instructions.values() if m.name not in known]
        nameless = [m for m in self.profile.nameless.values() if m.name not in known]
        longest = sorted((*named, *nameless), key=lambda m: -sum(m.seconds))[:_NAMED]
        return ", ".join(
            f"{found.name} {self._milliseconds([found]):.3g} ms" for found in longest
        )

    def _by_step(self, found: Measured) -> list[float]:
        """Milliseconds of an instruction in each step; the mean where that is unknown.

        A device's executions come in their order, but not which step they are of.
        """
        steps = max(1, self.profile.steps)
        each, left = divmod(len(found.seconds), steps)
        if left or self.profile.devices != 1:
            return [self._milliseconds([found])] * steps
        return [
            1e3 * sum(found.seconds[each * step : each * (step + 1)])
            for step in range(steps)
        ]

    def _milliseconds(self, found: Iterable[Measured]) -> float:
        runs = max(1, self.profile.steps) * max(1, self.profile.devices)
        return 1e3 * sum(sum(one.seconds) for one in found) / runs


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """All kernels of a kind in a step."""

    measured: Spread
    """Milliseconds of a step."""
    predicted: float
    instructions: int

    @property
    def error(self) -> float:
        """How far the prediction is off, whichever way."""
        return abs(self.predicted / self.measured.median - 1)


def median_error(kinds: Mapping[str, Kind]) -> float:
    """Of the kinds, each as much as the others."""
    return statistics.median(kind.error for kind in kinds.values())
