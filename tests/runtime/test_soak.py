"""Training with a fault every 50 steps has the losses of training without."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

SCRIPT = Path(__file__).with_name("soak.py")
# Programs that were compiled again and the allocator's own way to keep memory.
MOST_GROWN = 64 << 20


@pytest.mark.parametrize("verify", ["model", "online"])
def test_2000_steps_of_eight_processes(verify):
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "",
    }
    done = subprocess.run(
        [sys.executable, SCRIPT, "--verify", verify],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["same losses"]
    assert found["starts"][-1] == "done"
    assert not [start for start in found["starts"] if start.startswith("failed")]
    assert found["plans at most"] > 0
    assert max(found["bytes grown"], default=0) < MOST_GROWN
