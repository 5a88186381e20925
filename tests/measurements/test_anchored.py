"""A calibration narrows the models of an ensemble where something was measured."""

import numpy as np
import pytest

from lagom_jax.cluster import Cluster
from lagom_jax.cost.ensemble import Ensemble
from lagom_jax.errors import MeasurementError
from lagom_jax.hlo.work import Work
from lagom_jax.measurements import Calibration, members_of
from lagom_jax.measurements.samples import Key, Sample
from lagom_jax.program.program import Kernel

H100 = Cluster.parse("h100:1x8")
MODELS = Ensemble.of(H100)


def kernel(kind, log2_bytes):
    return Kernel(kind, Work(kind, 0.0, 1 << log2_bytes, 1 << log2_bytes))


def calibration(factor, cluster=H100, scatter=0.0):
    """Of copies, whose errors scatter up and down from size to size."""
    up_and_down = (1, -1, -1, 1, -1, 1, 1, -1, 1, -1)
    samples = [
        Sample(
            Key("kernel", "copy"), 2.0**i, 1e-3, factor * np.exp(scatter * sign) * 1e-3
        )
        for i, sign in enumerate(up_and_down, 20)
    ]
    return Calibration.fit(samples, cluster, model=MODELS.likeliest.digest)


def times(members, task):
    return [one.correct(one.model).kernel(task).seconds for one in members]


def test_where_it_was_measured_all_models_agree():
    copy = kernel("copy", 26)
    held = times(members_of(MODELS, calibration(1.5)), copy)
    wild = times(members_of(MODELS), copy)
    assert max(held) / min(held) < 1.4
    assert max(wild) / min(wild) > 2
    likeliest = MODELS.likeliest.kernel(copy).seconds
    assert np.median(held) == pytest.approx(1.5 * likeliest, rel=0.1)


def test_errors_of_single_sizes_have_little_in_common():
    members = members_of(MODELS, calibration(1.5, scatter=0.2))
    logs = np.log([times(members, kernel("copy", size)) for size in range(21, 29)])
    one, together = logs.std(axis=1).mean(), logs.mean(axis=0).std()
    assert one > 0.1
    # A step of eight such kernels is surer than one of them, but for the level's error.
    assert one / np.sqrt(8) < together < 0.75 * one


def test_what_nobody_measured_stays_as_open_as_it_was():
    other = kernel("transpose", 26)
    narrowed = times(members_of(MODELS, calibration(1.5)), other)
    assert narrowed == times(members_of(MODELS), other)


def test_far_from_what_was_measured_it_says_less():
    widths = []
    members = members_of(MODELS, calibration(1.5))
    for log2_bytes in (27, 31, 36):
        held = times(members, kernel("copy", log2_bytes))
        widths.append(max(held) / min(held))
    assert widths == sorted(widths)
    assert widths[-1] > 2 * (widths[0] - 1) + 1


def test_a_calibration_of_another_system_is_refused():
    other = Cluster.parse("a100:1x8")
    with pytest.raises(MeasurementError, match="says nothing about"):
        members_of(MODELS, calibration(1.5, other))
