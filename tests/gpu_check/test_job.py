"""Tuned job: losses that differ, plans without effect and warnings are seen."""

import json
import math

import pytest

from gpu_stages import job
from gpu_stages.job import JobError, Trained, compared, difference
from gpu_stages.result import StageResult
from gpu_stages.stage import Clock, Request

USUAL = Trained([3.0, 2.0, 1.0], [0.1, 0.2])


class Changes:
    """As much of a plan as the stage reads."""

    levers = ("fdo_profile",)
    settings = ()

    class evidence:
        measured = None


def verdict(tuned, repeated=USUAL):
    found = compared("FSDP", USUAL, tuned, repeated)
    result = StageResult("ran", 1.0, checks=tuple(found.checks))
    return result.verdict, found.findings


def test_the_same_losses_under_a_plan_hold():
    assert verdict(Trained(USUAL.losses, [0.1], plan=Changes())) == ("holds", [])


def test_one_bit_of_one_loss_refutes_it():
    other = [3.0, math.nextafter(2.0, 3.0), 1.0]
    assert verdict(Trained(other, [0.1], plan=Changes()))[0] == "refuted"


def test_a_job_that_does_not_repeat_itself_is_no_plans_fault():
    other = Trained([3.0, 2.25, 1.0], [0.1], plan=Changes())
    found, findings = verdict(other, Trained([3.0, 2.5, 1.0], [0.1]))
    assert found == "holds"
    assert "does not repeat its own losses, which differ by up to 0.5" in findings[0]


def test_without_a_plan_nothing_is_shown():
    found, findings = verdict(Trained(USUAL.losses, [0.1]))
    assert found == "open"
    assert "no plan would change anything" in findings[0]


def test_a_warning_refutes_it():
    warned = Trained(USUAL.losses, [0.1], ["no memory", "no memory"], Changes())
    assert verdict(warned) == ("refuted", ["FSDP: no memory"])


def test_losses_that_are_missing_or_no_numbers_differ():
    assert difference([1.0], [1.0, 2.0]) == math.inf
    assert difference([1.0, math.nan], [1.0, math.nan]) == math.inf


def test_what_a_run_wrote_is_read(tmp_path):
    (tmp_path / "out").mkdir()
    rows = [
        {"step": 1, "loss": 2.5, "seconds": 10.0},
        {"step": 2, "loss": 2.0, "seconds": 10.5},
        {"step": 2, "evaluation_loss": 2.2},
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "out" / "metrics.jsonl").write_text(text)
    log = tmp_path / "0.log"
    log.write_text("a.py:3: LagomWarning: the plan is for another cluster\n")
    found = job._read(tmp_path, [log])
    assert (found.losses, found.seconds) == ([2.5, 2.0], [0.5])
    assert found.warnings == ["the plan is for another cluster"]
    assert found.plan is None


def asked(tmp_path, **more):
    return Request(
        **{"gpu": "h100", "dry": True, "seconds": 60.0, "folder": tmp_path, **more}
    )


def test_a_process_that_fails_ends_the_job_with_its_last_words(tmp_path, monkeypatch):
    script = tmp_path / "train.py"
    script.write_text("import sys; sys.exit('no such model')")
    monkeypatch.setattr(job, "TRAIN", script)
    with pytest.raises(JobError, match="process 0 ended with status 1: no such model"):
        job.run(asked(tmp_path))


def test_a_job_that_hangs_is_ended(tmp_path, monkeypatch):
    script = tmp_path / "train.py"
    script.write_text("import time; print('waiting', flush=True); time.sleep(600)")
    monkeypatch.setattr(job, "TRAIN", script)
    with pytest.raises(JobError, match="fsdp-off: not done after"):
        job.run(asked(tmp_path, seconds=15.0))


def test_ranks_of_an_old_nccl_are_hosts(tmp_path, monkeypatch):
    request = asked(tmp_path, dry=False)
    one = job._Job("TP", request, Clock.of(request), 2)
    one._hosts = 2
    words, environment = (
        one._words("tune", tmp_path, "a:1", 1),
        one._environment(1, tmp_path),
    )
    assert "--lagom_cluster=h100:2x1" in words
    assert "--mesh=data=1,model=2" in words
    assert environment["NCCL_HOSTID"] == "gpu_check-1"
    one._hosts = 1
    assert "--lagom_cluster=h100:1x2" in one._words("tune", tmp_path, "a:1", 1)
    assert one._environment(1, tmp_path)["NCCL_MULTI_RANK_GPU_ENABLE"] == "1"
    assert one._environment(1, tmp_path)["NCCL_MAX_CTAS"] == "16"
