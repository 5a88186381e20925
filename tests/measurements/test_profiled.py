"""A calibration of one step from the profile of a run of it."""

import dataclasses

import pytest
from written_profile import profile_of

from lagom_jax.cost.model import CostModel
from lagom_jax.cost.replay import replay
from lagom_jax.errors import MeasurementError
from lagom_jax.measurements.calibration import Calibrated
from lagom_jax.measurements.executions import Event
from lagom_jax.measurements.profiled import calibration_of_run
from lagom_jax.measurements.xplane import read_profile, summarise
from lagom_jax.program.build import build_program
from tests.planner.fakes import H100, MODULES

PROGRAM = build_program(MODULES["fast"])
MODEL = CostModel.of(H100)


def profiled(timeline, prices, folder):
    file = folder / "host.xplane.pb"
    file.write_bytes(profile_of(PROGRAM, timeline, prices, 0.0, "0"))
    return read_profile(file)


@dataclasses.dataclass(frozen=True)
class Slower:
    """A machine whose collectives take 2.05 times as long, and whose kernels half."""

    def kernel(self, kernel):
        price = MODEL.kernel(kernel)
        gap = price.gap_seconds / 2
        return dataclasses.replace(price, seconds=price.seconds / 2, gap_seconds=gap)

    def collective(self, collective):
        price = MODEL.collective(collective)
        return dataclasses.replace(price, seconds=price.seconds * 2.05)


def test_the_models_own_run_corrects_nothing(tmp_path):
    timeline = replay(PROGRAM, MODEL, MODEL.contention())
    slowed = [one.seconds / one.alone_seconds for one in timeline.tasks.values()]
    assert max(slowed) > 1.05, "contention is there to be taken out"
    run = profiled(timeline, MODEL, tmp_path)
    found = calibration_of_run(PROGRAM, run, H100, MODEL)
    for one in found.corrections:
        assert one.curve.range == pytest.approx((1.0, 1.0), abs=0.01)


def test_a_step_is_predicted_by_what_its_own_run_took(tmp_path):
    timeline = replay(PROGRAM, Slower(), MODEL.contention())
    run = profiled(timeline, Slower(), tmp_path)
    found = calibration_of_run(PROGRAM, run, H100, MODEL)
    prices = found.apply(MODEL, H100, MODEL.digest)
    assert isinstance(prices, Calibrated)
    before = replay(PROGRAM, MODEL, MODEL.contention()).step_seconds
    after = replay(PROGRAM, prices, MODEL.contention()).step_seconds
    truth = timeline.step_seconds
    assert abs(before / truth - 1) > 0.2
    assert abs(after / truth - 1) < 0.1


def test_a_profile_that_names_nothing_of_it_calibrates_nothing():
    events = [Event("gpu", "s", n, 1.0, "k", "elsewhere", "other") for n in range(4)]
    with pytest.raises(MeasurementError, match="command_buffer"):
        calibration_of_run(PROGRAM, summarise(events), H100, MODEL)
