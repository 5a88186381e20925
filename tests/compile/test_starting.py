"""What is said where jax or XLA would not start."""

import os
import subprocess
import sys

import pytest

from lagom_jax.compile import starting
from lagom_jax.errors import LagomError

LOWER = "from lagom_jax.compile import lower; lower(lambda x: x, 1.0)"


def run_python(code, **environment):
    paths = os.pathsep.join(path for path in sys.path if path)
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": paths} | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--xla_nonsense", "Unknown flag in XLA_FLAGS: --xla_nonsense"),
        ("--xla_gpu_autotune_leve=0", "did you mean xla_gpu_autotune_level?"),
        ("/no/such/flags", "Could not open file"),
    ],
)
def test_flags_that_xla_refuses_are_told(monkeypatch, flags, said):
    monkeypatch.setenv("XLA_FLAGS", flags)
    with pytest.raises(LagomError, match=f"{said}.*unset XLA_FLAGS") as refused:
        starting.check_flags()
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    "flags", ["", " ", "--xla_gpu_enable_pipelined_all_gather=true --xla_dump_to=/x"]
)
def test_flags_that_xla_knows_pass(monkeypatch, flags):
    monkeypatch.setenv("XLA_FLAGS", flags)
    starting.check_flags()


def test_a_process_that_lowers_is_not_ended_by_its_flags():
    done = run_python(LOWER, XLA_FLAGS="--xla_nonsense")
    assert "LagomError: XLA refuses the environment variable" in done.stderr


def test_a_platform_that_is_not_there_is_told():
    done = run_python(LOWER, JAX_PLATFORMS="no_such_platform")
    assert "LagomError: jax finds no device" in done.stderr
    assert "set JAX_PLATFORMS=cpu" in done.stderr
