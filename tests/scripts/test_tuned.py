"""The training binary with a plan of the real compiler: the same losses, bit by bit."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked import TRAINING, Forked
from tests.kept_programs import kept_programs

# The binary, whose processes all keep their programs.
SCRIPT = Path(__file__).with_name("keeping.py")
# While it warms up, the step is the same program however many steps follow.
SIZE = ("--batch=16", "--sequence=16", "--model=phi-2", "--warmup=300")
LONGEST = 600
FEW = 5


class Runs:
    def __init__(self, folder):
        self.folder = folder

    def start(self, steps, *words):
        return Forked(
            [
                *(SCRIPT, *SIZE, "--log_every=1"),
                f"--steps={steps}",
                *("--lagom_compiles=2", "--lagom_levers=options"),
                # No doubt may hide that nothing was tuned.
                *("--lagom_strict", "--lagom_deterministic", "--lagom_progress"),
                *(f"--lagom_cache={self.folder / 'decisions'}", *words),
                *(f"--out={self.folder / 'out'}", f"--checkpoint_every={steps}"),
            ],
            modules=TRAINING,
            env={
                **{
                    n: v
                    for n, v in os.environ.items()
                    if n == "LAGOM_STORE" or not n.startswith("LAGOM_")
                },
                "PYTHONPATH": os.pathsep.join(sys.path),
                # Compiling takes longer than running.
                "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
                **kept_programs(),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self, process):
        """What was logged."""
        try:
            _, logged = process.communicate(timeout=LONGEST)
        finally:
            process.kill()
        assert process.returncode == 0, logged
        assert "LagomWarning" not in logged
        return logged

    def losses(self):
        lines = (self.folder / "out" / "metrics.jsonl").read_text().splitlines()
        found = [json.loads(line) for line in lines]
        shutil.rmtree(self.folder / "out")
        return [row["loss"] for row in found if "loss" in row], found[-1]

    def alone(self, mode, steps):
        words = ("--devices=8", "--lagom_cluster=h100:1x8", f"--lagom={mode}")
        logged = self.finish(self.start(steps, *words))
        return *self.losses(), logged

    def together(self, mode, steps):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            address = f"localhost:{free.getsockname()[1]}"
        shared = (f"--coordinator={address}", "--processes=2", "--devices=2")
        words = (*shared, "--lagom_cluster=h100:2x2", f"--lagom={mode}")
        first, second = (self.start(steps, *words, f"--process={n}") for n in (0, 1))
        try:
            logged = self.finish(first)
            self.finish(second)
        finally:
            second.kill()
        return *self.losses(), logged


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "steps"),
    [
        # One process is the easier half of two.
        pytest.param("alone", 60, marks=pytest.mark.nightly),
        # The devices of two processes share what cores there are, and take turns.
        ("together", FEW),
    ],
)
def test_the_same_losses(tmp_path, processes, steps):
    run = getattr(Runs(tmp_path), processes)
    usual, last, logged = run("off", steps)
    assert len(usual) == steps
    assert "lagom" not in logged.replace("lagom_", "")

    losses, last_tuned, logged = run("tune", steps)
    assert losses == usual
    assert last_tuned["evaluation_loss"] == last["evaluation_loss"]
    assert "2 compiles in" in logged
    assert re.search("the compiler is told: (?!nothing)", logged)

    # tests/runtime/test_views.py holds by day that a report changes nothing.
    if processes == "alone":
        losses, _, logged = run("report", FEW)
        assert losses == usual[:FEW]
        assert "wait for communication" in logged

    # tests/runtime/test_jobs.py holds by day that two processes take what was kept.
    if processes == "alone":
        losses, _, logged = run("tune", FEW)
        assert losses == usual[:FEW]
        assert "kept from before" in logged
        assert "compiling" not in logged
