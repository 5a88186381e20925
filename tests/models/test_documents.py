"""The page about the models can be followed to the letter."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kept_programs import kept_programs

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "models.md"


@pytest.mark.slow
def test_training_as_it_is_written(tmp_path: Path) -> None:
    page = PAGE.read_text()
    section = page.partition("## Training")[2]
    command = re.search(r"```sh\n(.*?)\n```", section)
    assert command
    # What the page shows before is part of what its reader has typed.
    shown, program = re.findall(r"```python\n(.*?)```", page, re.S)
    assert program in section
    (tmp_path / "train.py").write_text(f"{shown}{program}print(float(loss))\n")
    *settings, python, script = command[1].split()
    assert (python, script) == ("python", "train.py")
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        env=os.environ
        | kept_programs()
        # Compiling takes longer than running.
        | {"PYTHONPATH": paths, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
        | dict(setting.split("=", 1) for setting in settings),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert 0 < float(done.stdout) < 20
