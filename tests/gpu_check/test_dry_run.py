"""All stages, one after the other, as the command runs them: only the GPU is missing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_stages.registry import STAGES
from gpu_stages.result import Result

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_check.py"


@pytest.mark.slow
def test_a_dry_run_goes_the_whole_way(tmp_path):
    ran = subprocess.run(
        [sys.executable, SCRIPT, "--dry-run", f"--docs={tmp_path / 'pages'}"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    result = Result.read(tmp_path / "pages" / "h100.json")
    assert result.dry
    assert set(result.stages) == set(STAGES)
    for name, stage in result.stages.items():
        assert stage.rows, name
        assert stage.scores, name
    page = (tmp_path / "pages" / "h100.md").read_text()
    assert "A dry run" in page
