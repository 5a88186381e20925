"""A target that does not depend on the cluster room, and small sharded arrays."""

import os
import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from lagom_jax.compile import Target

# Meshes of devices, beside abstract ones.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

TARGET_TEXT = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 85029158912
  shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 8 }
runtime_version { major: 12 minor: 9 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""

REPLICATED = P()


def mesh(*sizes, names=("data", "model")):
    """An abstract mesh that leaves shardings to the compiler."""
    axes = names[: len(sizes)]
    return AbstractMesh(sizes, axes, axis_types=(AxisType.Auto,) * len(sizes))


def array(on, *shape, spec=REPLICATED, dtype=jnp.bfloat16):
    """The shape of an array that is sharded over a mesh."""
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(on, spec))


def hlo_text(module_bytes):
    """A module as text, by jaxlib's own printer."""
    from jax._src.lib import xla_client

    return xla_client.XlaComputation(module_bytes).get_hlo_module().to_string()


def comparable(text):
    """HLO text without what depends on where the source files are."""
    text = re.sub(r", metadata=\{[^}]*\}", "", text)
    return re.sub(
        r"(?ms)^(FileNames|FunctionNames|FileLocations|StackFrames)\n.*?\n\n", "", text
    )


@pytest.fixture
def h100x8():
    return Target("h100:1x8", TARGET_TEXT, "1x1x8")


@pytest.fixture
def h100():
    return Target("h100:1x1", TARGET_TEXT, "1x1x1")


@pytest.fixture(autouse=True)
def tests_share_processes_that_compile(monkeypatch):
    """Here the compile itself is tested: nothing is shared, or taken from the store."""
    monkeypatch.setenv("LAGOM_STORE", "off")
