"""Tuned job: losses that differ, plans without effect and warnings are seen."""

import json
import math

import pytest

from gpu_stages import job
from gpu_stages.job import Trained, compared, differing
from gpu_stages.running import ChildError
from gpu_stages.stage import Request, StageResult

USUAL = Trained([3.0, 2.0, 1.0])


class Changes:
    """As much of a plan as the stage reads."""

    levers = ("fdo_profile",)
    settings = ()

    class evidence:
        measured = None


def verdict(tuned, repeated=USUAL):
    found = compared(USUAL, tuned, repeated)
    return StageResult("ran", 1.0, outcome=found).verdict, found.findings


def test_the_same_losses_under_a_plan_hold():
    assert verdict(Trained(USUAL.losses, plan=Changes())) == ("holds", ())


def test_one_bit_of_one_loss_refutes_it():
    other = [3.0, math.nextafter(2.0, 3.0), 1.0]
    assert verdict(Trained(other, plan=Changes()))[0] == "refuted"


def test_a_job_that_does_not_repeat_itself_is_no_plans_fault():
    other = Trained([3.0, 2.25, 1.0], plan=Changes())
    found, findings = verdict(other, Trained([3.0, 2.5, 1.0]))
    assert found == "holds"
    assert "does not repeat its own losses in 1 steps" in findings[0]


def test_without_a_plan_nothing_is_shown():
    found, findings = verdict(USUAL)
    assert found == "open"
    assert "No plan would change anything" in findings[0]


def test_a_plan_that_was_not_made_is_told_from_one_without_effect():
    found, findings = verdict(Trained(USUAL.losses, planned=False))
    assert found == "open"
    assert "No plan was made" in findings[0]


def test_a_warning_refutes_it():
    warned = Trained(USUAL.losses, ["no memory", "no memory"], Changes())
    assert verdict(warned) == ("refuted", ("no memory",))


def test_losses_that_are_missing_or_no_numbers_differ():
    assert differing([1.0], [1.0, 2.0]) == 1
    assert differing([1.0, math.nan], [1.0, math.nan]) == 1


def test_what_a_run_wrote_is_read(tmp_path):
    (tmp_path / "out").mkdir()
    rows = [
        {"step": 1, "loss": 2.5},
        {"step": 2, "loss": 2.0},
        {"step": 2, "evaluation_loss": 2.2},
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "out" / "metrics.jsonl").write_text(text)
    log = tmp_path / "0.log"
    log.write_text("a.py:3: LagomWarning: the plan is for another cluster\n")
    found = job._read(tmp_path, [log])
    assert found.losses == [2.5, 2.0]
    assert found.warnings == ["the plan is for another cluster"]
    assert found.plan is None


@pytest.mark.parametrize(
    ("body", "seconds", "why"),
    [
        (
            "import sys; sys.exit('no such model')",
            60.0,
            "process 0 ended with status 1",
        ),
        ("import time; time.sleep(600)", 6.0, "off: not done after 2 s"),
    ],
)
def test_a_job_that_fails_or_hangs_is_ended(tmp_path, monkeypatch, body, seconds, why):
    script = tmp_path / "train.py"
    script.write_text(f"print('begun', flush=True); {body}")
    monkeypatch.setattr(job, "TRAIN", script)
    with pytest.raises(ChildError, match=f"{why}: (no such model|begun)"):
        job.run(Request("h100", True, seconds, str(tmp_path)))


def test_a_warning_of_the_job_reaches_its_log(tmp_path, monkeypatch):
    script = tmp_path / "train.py"
    script.write_text(
        "import pathlib, sys, warnings\n"
        "from lagom_jax.runtime.say import LagomWarning\n"
        "warnings.warn('no order', LagomWarning)\n"
        "(out,) = (w[6:] for w in sys.argv if w.startswith('--out='))\n"
        "pathlib.Path(out).mkdir()\n"
        "(pathlib.Path(out) / 'metrics.jsonl').write_text('{\"loss\": 1.0}\\n')\n"
    )
    monkeypatch.setattr(job, "TRAIN", script)
    found = job.run(Request("h100", True, 60.0, str(tmp_path)))
    assert "no order" in found.findings


def test_each_process_is_a_rank_of_one_host(tmp_path):
    request = Request("h100", False, 280.0, str(tmp_path))
    words = job._words(request, "tune", tmp_path, "a:1", 1)
    assert "--lagom_cluster=h100:1x2" in words
    assert {"--process=1", "--coordinator=a:1"} < set(words)
    environment = job._environment(request, tmp_path)
    assert environment["NCCL_MULTI_RANK_GPU_ENABLE"] == "1"
    assert environment["NCCL_MAX_CTAS"] == "16"
