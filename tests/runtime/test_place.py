import types

import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from lagom_jax.errors import ClusterError
from lagom_jax.runtime.arguments import devices_of
from lagom_jax.runtime.place import cluster_of, on_gpus

H100 = "NVIDIA H100 80GB HBM3"


def gpus(kind, *hosts, slices=True, platform="gpu"):
    """Devices as jax shows them, so many on each host."""
    found = []
    for host, count in enumerate(hosts):
        for _ in range(count):
            device = types.SimpleNamespace(
                id=len(found), platform=platform, device_kind=kind, process_index=host
            )
            if slices:
                # One process for each GPU.
                device.slice_index, device.process_index = host, len(found)
            found.append(device)
    return found


@pytest.mark.parametrize(
    ("kind", "hosts", "slices", "name"),
    [
        (H100, (8, 8), True, "h100:2x8"),
        (H100, (8, 8), False, "h100:2x8"),
        (H100, (4,), True, "h100:1x4"),
        ("NVIDIA H200", (8,) * 4, True, "h200:4x8"),
        ("NVIDIA GB200", (72,), True, "gb200-nvl72:18x4"),
        ("NVIDIA GB200", (72, 72), True, "gb200-nvl72:36x4"),
        ("NVIDIA GB200", (4,), True, "gb200-nvl72:1x4"),
    ],
)
def test_clusters(kind, hosts, slices, name):
    devices = gpus(kind, *hosts, slices=slices)
    assert on_gpus(devices)
    assert cluster_of(devices).name == name


@pytest.mark.parametrize(
    ("devices", "told"),
    [
        (gpus("NVIDIA GeForce RTX 4090", 2), "no system that is known here"),
        (gpus("NVIDIA A40", 8), "a40-nvlink, a40-pcie have.*name the cluster"),
        (gpus(H100, 8, 4), r"unevenly over hosts \(8, 4\)"),
        (gpus(H100, 4) + gpus("NVIDIA H200", 4), "several kinds"),
        (gpus(H100, 16), "h100"),
    ],
)
def test_what_has_no_name(devices, told):
    with pytest.raises(ClusterError, match=told):
        cluster_of(devices)


def test_what_is_no_nvidia_gpu():
    assert not on_gpus([])
    assert not on_gpus(gpus("AMD Instinct MI300X", 8))
    assert not on_gpus(gpus("TPU v5", 4, platform="tpu"))


def test_shardings_without_devices_say_nothing_of_where_a_step_runs():
    mesh = AbstractMesh((2,), ("data",), axis_types=(AxisType.Auto,))
    nowhere = NamedSharding(mesh, PartitionSpec("data"))
    here = jnp.ones(2)
    assert devices_of((here.sharding, nowhere)) == tuple(here.devices())
