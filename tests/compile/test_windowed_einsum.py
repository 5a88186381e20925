"""XLA's own collective matmul: never without devices, and said; on CPUs it acts."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

from lagom_jax.api import analyze

OPTION = "xla_gpu_threshold_for_windowed_einsum_mib"


def gathered(mesh, rows):
    """A matmul of rows that are gathered, left to the partitioner."""
    cut, columns = NamedSharding(mesh, P("t")), NamedSharding(mesh, P(None, "t"))
    args = (
        jax.ShapeDtypeStruct((rows, 4096), jnp.bfloat16, sharding=cut),
        jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16, sharding=columns),
    )
    return jax.jit(lambda x, w: x @ w, out_shardings=columns), args


@pytest.mark.slow
@pytest.mark.parametrize(
    ("least", "said"),
    [
        pytest.param(
            *(0, 1),
            marks=pytest.mark.skipif(
                jax.__version_info__ >= (0, 12),
                reason="the verifier of XLA that is in jax 0.12 refuses this step",
            ),
        ),
        (100_000, 0),
    ],
)
def test_a_step_compiled_without_devices_has_no_loop_and_the_report_says_so(
    least, said
):
    # From jax 0.12 on meshes leave nothing to the partitioner unless they say so.
    mesh = AbstractMesh((4,), ("t",), axis_types=(jax.sharding.AxisType.Auto,))
    f, args = gathered(mesh, 8192)
    options = {OPTION: least, "xla_gpu_enable_triton_gemm": False}
    report = analyze(f, *args, cluster="h100:1x4", compiler_options=options)
    assert [one.kind for one in report.collectives] == ["all-gather"]
    assert sum(OPTION in note for note in report.notes) == said


ON_CPUS = """
import jax, sys
from tests.compile.test_windowed_einsum import gathered
auto = (jax.sharding.AxisType.Auto,)
mesh = jax.make_mesh((4,), ("t",), axis_types=auto)
f, args = gathered(mesh, int(sys.argv[1]))
text = f.lower(*args).compile().as_text()
print(text.count(" while("), text.count("collective-permute("))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("mib", "loops"), [(99_000, "0 0"), (101_000, "1 1")])
def test_the_same_matmul_becomes_a_loop_where_xla_has_a_limit_of_devices(mib, loops):
    rows = mib * 2**20 // (2 * 4096) // 4 * 4
    env = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
    }
    command = [sys.executable, "-c", ON_CPUS, str(rows)]
    out = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == loops
