"""The frame of all stages: processes, results, pages, and the command."""

import os
import re
import stat
import subprocess
import sys
import time
from pathlib import Path

import gpu_check
import pytest

from gpu_stages import running
from gpu_stages.stage import (
    STAGES,
    CannotRunError,
    Check,
    Outcome,
    Request,
    StageResult,
    answer,
)
from lagom_jax.typed_json import FormError

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_check.py"


@pytest.fixture
def stage(tmp_path, monkeypatch):
    """Runs a stage that is written for the test."""
    monkeypatch.syspath_prepend(tmp_path)

    def run(body, *, seconds=60.0, dry=True):
        (tmp_path / "written.py").write_text(
            "import os, subprocess, sys, time\n"
            "from gpu_stages.stage import *\n"
            f"def run(request):\n    {body}\n"
        )
        request = Request("h100", dry, seconds, str(tmp_path / "run"))
        return running.run_stage("written", request)

    return run


def test_what_a_stage_found_comes_back(stage, capfd):
    found = stage(
        "say('half');"
        "return Outcome((Check('close', 0.5, at_most=1.0),),"
        " ('odd',), ('rest',), ('lagom calibrate',))"
    )
    assert "half" in capfd.readouterr().err
    assert (found.status, found.verdict) == ("ran", "holds")
    assert found.outcome == Outcome(
        checks=(Check("close", 0.5, at_most=1.0),),
        findings=("odd",),
        left_out=("rest",),
        calibrate=("lagom calibrate",),
    )


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        ("raise CannotRunError('no NCCL')", "cannot run", "no NCCL"),
        ("raise ValueError('so wrong')", "failed", "ValueError: so wrong"),
        ("os.abort()", "failed", "its process was ended by SIGABRT"),
        ("os._exit(3)", "failed", "its process ended with status 3"),
    ],
)
def test_one_that_does_not_run_to_its_end(stage, body, status, why):
    found = stage(body)
    assert (found.status, found.why, found.verdict) == (status, why, "open")


def test_a_stage_that_hangs_is_ended_with_all_that_it_started(
    stage, monkeypatch, tmp_path
):
    monkeypatch.setattr(running, "_GRACE", 0.0)
    found = stage(
        "child = subprocess.Popen(['sleep', '600']);"
        "(request.path / 'pid').write_text(str(child.pid)); time.sleep(600)",
        seconds=10.0,
    )
    assert found.status == "failed"
    assert re.search(r"was ended, not done after \d+ s", found.why)
    pid = int((tmp_path / "run" / "pid").read_text())
    end = time.monotonic() + 30
    while alive(pid):
        assert time.monotonic() < end
        time.sleep(0.1)


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_what_is_set_for_other_programs_does_not_reach_a_stage(stage, monkeypatch):
    for name in ("NCCL_ALGO", "LAGOM_MODE", "XLA_FLAGS"):
        monkeypatch.setenv(name, "--xla_gpu_autotune_level=0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,4")
    body = (
        "return Outcome(findings=(*(n for n in ('NCCL_ALGO', 'LAGOM_MODE', 'XLA_FLAGS')"
        " if n in os.environ), os.environ['CUDA_VISIBLE_DEVICES']))"
    )
    assert stage(body, dry=False).outcome.findings == ("3",)


def test_a_damaged_result_is_refused(tmp_path):
    StageResult("ran", 1.0).write(tmp_path)
    text = (tmp_path / "outcome.json").read_text()
    (tmp_path / "outcome.json").write_text(text.replace('"ran"', '"walked"'))
    with pytest.raises(FormError, match="status: 'walked' is none of"):
        StageResult.read(tmp_path)


def test_goals():
    def verdict(*checks, status="ran"):
        return StageResult(status, 1.0, outcome=Outcome(checks)).verdict

    met, missed = Check("a", 0.1, at_most=0.1), Check("a", 0.2, at_most=0.1)
    assert verdict(met, missed) == "refuted"
    assert verdict(met, Check("a", 0.9)) == "holds"
    assert verdict(Check("a", 0.9)) == "open"
    assert verdict(missed, status="failed") == "open"


def test_the_page_shows_what_matters():
    outcome = Outcome(
        checks=(Check("error in points", 13.125, at_most=5), Check("calls", 1 << 26)),
        findings=("copies are slow",),
        left_out=("fp8",),
        calibrate=("`lagom calibrate --matmuls matmuls.csv`",),
    )
    failed = StageResult("failed", 3.0, "it was ended")
    lines = "\n".join(
        [
            *answer("contention", StageResult("ran", 12.0, outcome=outcome)),
            *answer("obeyed", failed),
        ]
    ).splitlines()
    question = STAGES["contention"]
    for line in (
        "| error in points | 13.12 | 5 | **no** |",
        "| calls | 67108864 |  |  |",
        "- copies are slow",
        "- fp8",
        "**Failed**: it was ended",
        "## Contention: refuted",
        question.text,
        f"**No.** {question.if_refuted}",
        "To calibrate with, in contention/:",
        "- `lagom calibrate --matmuls matmuls.csv`",
    ):
        assert line in lines, line


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """A driver's program that says what the test wants."""

    def write(text, status=0):
        path = tmp_path / "nvidia-smi"
        path.write_text(
            f"#!/bin/sh\necho \"$@\" >&2\nprintf '%s' '{text}'\nexit {status}\n"
        )
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return write


def test_the_gpu_is_asked_for_its_name(smi):
    smi("NVIDIA H200, 580.1, 143771 MiB, 1980 MHz\n")
    found = gpu_check.gpu_here()
    assert found["driver_version"] == "580.1"
    assert gpu_check.system_of(found["name"]) == "h200"


def test_no_gpu_and_an_unknown_one_are_different_errors(smi, monkeypatch):
    smi("No devices were found", 6)
    with pytest.raises(CannotRunError, match="No devices were found"):
        gpu_check.gpu_here()
    with pytest.raises(CannotRunError, match="--gpu=h100"):
        gpu_check.system_of("NVIDIA Abacus 3000")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CannotRunError, match="--dry-run"):
        gpu_check.gpu_here()


def command(*words, **more):
    return subprocess.run(
        [sys.executable, SCRIPT, *words],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **more},
        check=False,
    )


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--dry-run", "obey"], "no stage 'obey'; there are contention"),
        (["--dry-run", "--seconds=0"], "a stage needs some"),
        (["--dry-run", "--gpu=abacus"], "no system is known as 'abacus'"),
        (["--dry-run", f"--out={SCRIPT.parent}"], "name another --out"),
        ([], "--dry-run"),
    ],
)
def test_what_cannot_be_done_is_refused(words, why):
    ran = command(*words, PATH="")
    assert ran.returncode == 2
    assert why in " ".join(ran.stderr.split())
    assert "Traceback" not in ran.stderr


def test_the_help_names_all_stages():
    shown_help = command("--help").stdout
    assert all(f"  {name}" in shown_help for name in STAGES)
