"""Stages, one after the other, as the command runs them: only the GPU is missing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_stages.registry import STAGES
from gpu_stages.result import Result

# These two take the longest, and their own tests run them the same way.
APART = ("job", "profile")
HERE = [name for name in STAGES if name not in APART]
SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_check.py"


@pytest.mark.slow
def test_a_dry_run_goes_the_whole_way(tmp_path):
    ran = subprocess.run(
        [sys.executable, SCRIPT, *HERE, "--dry-run", f"--docs={tmp_path / 'pages'}"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    result = Result.read(tmp_path / "pages" / "h100.json")
    assert result.dry
    assert list(result.stages) == HERE
    for name, stage in result.stages.items():
        assert stage.status == "ran", name
        assert stage.scores, name
    page = (tmp_path / "pages" / "h100.md").read_text()
    assert "A dry run" in page
