"""A tiny model trains the same with its collectives in slices, fused or not at all."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).with_name("train_fused_on_cpu.py")
# After the first it has learned all there is, and no difference is left to grow.
STEPS, STEPS_AT_NIGHT = 20, 50


@functools.cache
def trained(way, steps, remat):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), way, str(steps), "remat" if remat else ""],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(
    "remat", [False, pytest.param(True, marks=pytest.mark.nightly)]
)
@pytest.mark.parametrize(
    "way",
    [
        "commfuse",
        "sliced",
        # The layers of the first, and the slices of the second, along other axes.
        pytest.param("commfuse-sp", marks=pytest.mark.nightly),
        pytest.param("half batches", marks=pytest.mark.nightly),
    ],
)
def test_it_trains_as_the_plain_one(way, remat, request):
    steps = STEPS_AT_NIGHT if request.config.getoption("--nightly") else STEPS
    plain, found = trained("plain", steps, remat), trained(way, steps, remat)
    losses = plain["losses"]
    assert losses[-1] < 0.01 * losses[0]
    if way == "sliced" and not remat:
        # No sum of the step changes: weights and moments have the same bits after all
        # steps. The loss that is told is a mean over both slices, in another kernel.
        assert found["state"] == plain["state"]
        np.testing.assert_allclose(found["losses"], losses, rtol=1e-6)
    # Alike to the last bits of bfloat16 at first; later small differences grow.
    np.testing.assert_allclose(found["losses"][:5], losses[:5], rtol=5e-3)
    np.testing.assert_allclose(found["losses"], losses, rtol=0.1, atol=0.05)
