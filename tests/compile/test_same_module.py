"""The mesh that a step was written on does not change what is compiled."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_virtual_cpu_devices_and_abstract_meshes_give_the_native_module():
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
    }
    result = subprocess.run(
        [sys.executable, "-m", "tests.compile.same_module"],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    # Replicated scalars are marked only where devices are, hence the fingerprint.
    assert result.stdout.splitlines() == [
        "virtual == native: True",
        "abstract == native: True",
        "virtual order: 0 1 2 3 4 5 6 7",
        "permuted order: 7 6 5 4 3 2 1 0",
    ]
