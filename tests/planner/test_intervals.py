"""How sure the two steps of a plan are: what was measured makes them surer."""

import dataclasses

import pytest

from lagom_jax.cluster import Cluster
from lagom_jax.cost.ensemble import Ensemble
from lagom_jax.measurements import Calibration, members_of
from lagom_jax.measurements.samples import Sample, key_of, size_of
from lagom_jax.program.program import Launch, Loop, Program, Run, Stream, Wait
from lagom_jax.settings.controls import named
from lagom_jax.settings.tuning import tune_program

from ..settings.programs import matmul, site

MEASURED, ESTIMATED = Cluster.parse("h100:1x8"), Cluster.parse("a40-pcie:2x8")


def step(cluster):
    """A layer's gather and scatter beside matmuls, thirty-two times."""
    gather = site(cluster, "all-gather", 157_000_000)
    scatter = site(cluster, "reduce-scatter", 157_000_000)
    body = (
        *(Launch(gather, Stream.COLLECTIVE, 0), Launch(scatter, Stream.COLLECTIVE, 1)),
        *(Run(matmul(8192, 2560, 10240)), Run(matmul(8192, 10240, 2560))),
        *(Wait((0,)), Wait((1,))),
    )
    return Program("p", (Loop("l", body, 32, True),), cluster.devices)


def widths(cluster, calibration=None):
    """Of the intervals of the step, before and after."""
    program, models = step(cluster), Ensemble.of(cluster)
    model = models.likeliest
    correction = calibration and calibration.apply(model, cluster, model.digest)
    found = tune_program(
        program,
        cluster,
        model,
        controls=named("tuner"),
        correct=lambda prices: (
            dataclasses.replace(correction, base=prices) if correction else prices
        ),
        members=members_of(models, calibration),
    ).uncertainty
    return found.default.width, found.tuned.width


def calibration(cluster, factor):
    """Of all kernels and collectives of the step, an octave around each."""
    model = Ensemble.of(cluster).likeliest
    samples: list[Sample] = []
    for task, _, _ in step(cluster).tasks():
        seconds = (
            model.kernel(task).seconds
            if hasattr(task, "work")
            else model.collective(task).seconds
        )
        samples += [
            Sample(key_of(task, cluster), size_of(task) * 2.0**octave, t, factor * t)
            for octave in (-1, -0.5, 0, 0.5, 1)
            for t in [seconds * 2.0**octave]
        ]
    return Calibration.fit(samples, cluster, model=model.digest)


def test_what_rests_on_measurements_is_surer_than_what_is_estimated():
    for near, far in zip(widths(MEASURED), widths(ESTIMATED), strict=True):
        assert 0 < near < far


@pytest.mark.parametrize("cluster", [MEASURED, ESTIMATED], ids=lambda c: c.name)
def test_a_calibration_makes_it_surer(cluster):
    before, after = widths(cluster), widths(cluster, calibration(cluster, 1.2))
    for wide, narrow in zip(before, after, strict=True):
        assert narrow < wide / 2
