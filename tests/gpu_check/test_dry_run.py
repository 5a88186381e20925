"""All stages, one after the other, as the command runs them: only the GPU is missing."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_stages.result import Result
from gpu_stages.stage import STAGES
from lagom_jax.cli import main as lagom

# It takes as long as all others; tests/scripts/test_tuned.py runs the same job.
AT_NIGHT = "job"
SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_check.py"


def answers(folder, *stages):
    """Verdicts and page of a dry run."""
    words = ("--dry-run", f"--docs={folder / 'pages'}", f"--keep={folder / 'kept'}")
    ran = subprocess.run(
        [sys.executable, SCRIPT, *stages, *words],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    result = Result.read(folder / "pages" / "h100.json")
    assert result.dry
    verdicts = {name: stage.verdict for name, stage in result.stages.items()}
    return verdicts, (folder / "pages" / "h100.md").read_text()


@pytest.mark.slow
def test_every_question_is_answered(tmp_path, monkeypatch, capsys):
    stages = [name for name in STAGES if name != AT_NIGHT]
    verdicts, page = answers(tmp_path, *stages)
    assert verdicts == dict.fromkeys(stages, "holds")
    assert "A dry run" in page
    assert all(f"## {name.capitalize()}: holds" in page for name in stages)

    commands = re.findall(r"^- `lagom (calibrate .*)`$", page, re.MULTILINE)
    assert [command.split()[3] for command in commands] == ["--matmuls", "--profile"]
    monkeypatch.chdir(tmp_path / "kept")
    for command in commands:
        assert lagom(shlex.split(command)) == 0
        assert "wrote my.json" in capsys.readouterr().out


@pytest.mark.nightly
def test_all_stages_at_once(tmp_path):
    verdicts, _ = answers(tmp_path)
    assert verdicts == dict.fromkeys(STAGES, "holds")
