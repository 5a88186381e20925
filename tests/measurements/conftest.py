"""A real profile, made once: of the CPU backend with eight virtual devices."""

import subprocess
import sys

import pytest

ON_CPU = """
import os, sys
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"
import jax, jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
cut, whole = NamedSharding(mesh, P("x")), NamedSharding(mesh, P())

@jax.jit
def step(w, x):
    y = jax.lax.with_sharding_constraint(jnp.tanh(x @ w), cut)
    return jax.lax.with_sharding_constraint(y.sum(0), whole)

w, x = (jax.device_put(jnp.ones(shape), cut) for shape in ((64, 64), (128, 64)))
compiled = step.lower(w, x).compile()
step(w, x).block_until_ready()
with jax.profiler.trace(sys.argv[1]):
    for _ in range(3):
        step(w, x).block_until_ready()
with open(sys.argv[2], "w") as file:
    file.write(compiled.as_text())
"""


@pytest.fixture(scope="session")
def cpu_run(tmp_path_factory):
    """A profile of three steps on eight virtual devices, and the program."""
    folder = tmp_path_factory.mktemp("cpu")
    trace, dump = folder / "trace", folder / "step.txt"
    done = subprocess.run(
        [sys.executable, "-c", ON_CPU, str(trace), str(dump)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return trace, dump
