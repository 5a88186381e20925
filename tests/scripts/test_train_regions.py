"""The training binary in regions: processes that agree, die and return."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked import TRAINING, Forked
from tests.kept_programs import kept_programs
from tests.scripts.test_train import SCRIPTS

pytestmark = pytest.mark.slow
WORDS = (
    *("--devices=2", "--regions=2", "--batch=8", "--sequence=32", "--log_every=1"),
    *("--step_seconds=0.2", "--wan=1gbps,10ms", "--period=6", "--fragments=3"),
)


def train(*words):
    return Forked(
        [SCRIPTS / "train.py", *WORDS, *words],
        modules=TRAINING,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "PYTHONUNBUFFERED": "1",
            **kept_programs(),
            # jax keeps no program with callbacks: each region compiles its step anew.
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def rows(out: Path, region: int) -> list[dict]:
    lines = (out / f"region{region}" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_two_regions_train_one_model(tmp_path):
    process = train("--steps=12", f"--out={tmp_path}")
    printed, errors = process.communicate(timeout=500)
    assert process.returncode == 0, errors
    assert "2 regions of 1 devices, cocodc over 1gbps,10ms" in printed
    assert re.search(r"region 0: sends of each fragment \[\d+, \d+, \d+\]", printed)
    one, other = (rows(tmp_path, n) for n in (0, 1))
    # Each reads a text of its own, and both end with the same global parameters.
    assert one[0]["loss"] != other[0]["loss"]
    assert one[-1]["evaluation_loss"] == other[-1]["evaluation_loss"]
    assert one[-2]["loss"] < one[0]["loss"]


# `tests/regions/test_processes.py` kills one, too, without the training binary.
@pytest.mark.nightly
def test_a_region_that_is_killed_is_started_again_and_returns(tmp_path):
    process = train("--steps=60", f"--out={tmp_path}")
    try:
        for line in process.stdout:
            if re.match(r" *5  ", line):
                break
        listed = subprocess.run(
            ["pgrep", "-P", str(process.pid), "-f", "region=1"],
            capture_output=True,
            text=True,
        )
        os.kill(int(listed.stdout.split()[0]), signal.SIGKILL)
        printed, errors = process.communicate(timeout=500)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert "region 1 ended with code -9; the others go on" in errors
    assert "loss on held-out text" in printed
