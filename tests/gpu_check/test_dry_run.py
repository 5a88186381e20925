"""All stages, one after the other, as the command runs them: only the GPU is missing."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_stages.stage import STAGES, StageResult
from lagom_jax.cli import main as lagom

# It takes as long as all others; tests/scripts/test_tuned.py runs the same job.
AT_NIGHT = "job"
SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_check.py"


def verdicts(out, *stages):
    ran = subprocess.run(
        [sys.executable, SCRIPT, *stages, "--dry-run", f"--out={out}"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return {
        name: StageResult.read(out / name).verdict
        for name in STAGES
        if (out / name).exists()
    }


@pytest.mark.slow
def test_every_question_is_answered(tmp_path, monkeypatch, capsys):
    stages = [name for name in STAGES if name != AT_NIGHT]
    found = verdicts(tmp_path / "out", *stages)
    assert list(found) == stages
    # The law of contention is not that of the stand-ins.
    assert found == dict.fromkeys(stages, "holds") | {"contention": "refuted"}
    page = (tmp_path / "out" / "h100.md").read_text()
    assert page.startswith("# No GPU: a dry run, whose figures mean nothing\n")
    assert all(f"## {name.capitalize()}: {found[name]}" in page for name in stages)

    (command,) = re.findall(r"^- `lagom (.*)`$", page, re.MULTILINE)
    monkeypatch.chdir(tmp_path / "out" / "contention")
    assert lagom(shlex.split(command)) == 0
    assert "wrote my.json" in capsys.readouterr().out


@pytest.mark.nightly
def test_the_job_at_night(tmp_path):
    assert verdicts(tmp_path / "out", AT_NIGHT) == {AT_NIGHT: "holds"}
