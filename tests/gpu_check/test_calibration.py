"""Calibration: worse predictions of unseen steps refute it, better ones of seen ones
show nothing."""

import pytest

from gpu_stages import calibration
from gpu_stages.calibration import Compared, judged
from gpu_stages.result import StageResult
from gpu_stages.stage import CannotRunError, Request, Spread

SEEN = Compared("seen", Spread.of([10.0]), 8.0, 10.0)


def verdict(*unseen):
    checks = tuple(judged(SEEN, *unseen).checks)
    return StageResult("ran", 1.0, checks=checks).verdict


def test_unseen_steps_have_to_come_nearer():
    better = Compared("better", Spread.of([20.0]), 15.0, 19.0)
    worse = Compared("worse", Spread.of([20.0]), 19.0, 15.0)
    assert verdict(better) == "holds"
    assert verdict(better, worse) == "refuted"


def test_the_step_that_was_calibrated_with_shows_nothing():
    assert verdict() == "open"


def test_a_profile_that_cannot_be_read_is_explained(tmp_path):
    subject = calibration.Subject("phi-2", {})
    (tmp_path / subject.name / "trace").mkdir(parents=True)
    (tmp_path / subject.name / "program.txt").write_text("HloModule nothing")
    with pytest.raises(CannotRunError, match="does not read the profile: lagom: "):
        calibration._calibrate(subject, Request("h100", True, 60.0, tmp_path))
