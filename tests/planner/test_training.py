"""A step that is compiled as a plan says trains as it did before."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import lagom_models
from lagom_jax.plan import save
from lagom_jax.planner import Budget, make_plan

SCRIPT = Path(__file__).with_name("train_through_plan.py")
STEPS = 20


def losses(plan):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(plan), str(STEPS)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [float.fromhex(word) for word in done.stdout.split()]


# `tests/scripts/test_tuned.py` holds the same of whole jobs.
@pytest.mark.slow
@pytest.mark.nightly
def test_the_same_losses_bit_by_bit(tmp_path):
    """On the CPU only options can act, and they are about when, not about what."""
    step = lagom_models.build("llama-3-8b", devices=8, tiny=True, learning_rate=3e-3)
    plan = make_plan(
        step.function,
        *step.arguments,
        cluster="h100:1x8",
        deterministic=True,
        budget=Budget(compiles=4, evaluations=100),
    )
    assert plan.compiler_options()
    save(plan, tmp_path / "plan.json")
    before, after = losses("none"), losses(tmp_path / "plan.json")
    assert len(before) == STEPS
    assert before[-1] < 0.5 * before[0]
    assert after == before
