"""A calibration from the profile of a run: what each instruction took, by its name.

A kernel that ran beside a collective took longer than it does alone, and so did the
collective. The replay of the same program says by how much: that is taken out, so that
what is corrected are the times alone, as the model has them.
"""

from __future__ import annotations

from lagom_jax.cluster import Cluster
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.prices import Prices
from lagom_jax.cost.replay import replay
from lagom_jax.cost.timeline import TaskTime
from lagom_jax.errors import MeasurementError
from lagom_jax.measurements.calibration import Calibration, MeasurementFile
from lagom_jax.measurements.overlay import Match, match
from lagom_jax.measurements.samples import Sample, samples_of_seconds
from lagom_jax.measurements.xplane import MeasuredStep
from lagom_jax.program.program import Program, Task

LEAST_KNOWN = 0.3
"""A profile that names less than this share of a program's time calibrates nothing."""
_ROUNDS = 4
"""Times that it is worked out what ran beside what; more of them change nothing that
matters."""


def samples_of_run(
    program: Program, step: MeasuredStep, cluster: Cluster, model: CostModel
) -> tuple[list[Sample], Match]:
    """Samples of the instructions that a profile measured, as if each had run alone.

    Args:
        program: The program that ran.
        step: What the profile says of it.
        cluster: Where it ran.
        model: The model to be corrected.
    """
    found = match(program, step, model)

    def samples_by(prices: Prices) -> list[Sample]:
        alone = _alone(program, found, model, prices)
        return samples_of_seconds(alone, cluster, model)

    samples = samples_by(model)
    # What ran beside what depends on the times that are looked for.
    for _ in range(_ROUNDS - 1):
        if not samples:
            break
        fitted = Calibration.fit(samples, cluster, model=model.digest)
        samples = samples_by(fitted.apply(model, cluster, model.digest))
    return samples, found


def calibration_of_run(
    program: Program, step: MeasuredStep, cluster: Cluster, model: CostModel
) -> Calibration:
    """The calibration of one step on one cluster, from a profile of it.

    Args:
        program: The program that ran.
        step: What the profile says of it.
        cluster: Where it ran.
        model: The model to be corrected.

    Raises:
        MeasurementError: The profile names too little of the program.
    """
    samples, found = samples_of_run(program, step, cluster, model)
    if not samples or found.share < LEAST_KNOWN:
        raise MeasurementError(
            f"the profile names too little of {program.name} ({found.words()}); with "
            "CUDA graphs it names hardly anything: "
            "XLA_FLAGS=--xla_gpu_enable_command_buffer= leaves them out"
        )
    source = MeasurementFile(step.origin or step.module, "profile", len(samples))
    return Calibration.fit(samples, cluster, model=model.digest, sources=[source])


def _alone(
    program: Program, found: Match, model: CostModel, prices: Prices
) -> dict[Task, float]:
    """Measured seconds of one execution, without what contention added."""
    timeline = replay(program, prices, model.contention())
    return {
        task: found.seconds[task.name] / _slowdown(timeline.tasks.get(task))
        for task in found.measured
    }


def _slowdown(times: TaskTime | None) -> float:
    if times is None or times.alone_seconds <= 0.0:
        return 1.0
    return max(1.0, times.seconds / times.alone_seconds)
