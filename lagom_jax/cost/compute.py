"""Seconds of a kernel that has the GPU to itself: a roofline.

A kernel takes the longer of its arithmetic at the rate its number type reaches and its
memory traffic at the bandwidth kernels reach, and a launch.
"""

from __future__ import annotations

from collections.abc import Mapping

from lagom_jax.cluster import Cluster, Gpu
from lagom_jax.cost.constants import Constants
from lagom_jax.cost.prices import Price
from lagom_jax.hlo.work import Matmul, Work


def kernel_price(work: Work, cluster: Cluster, constants: Constants) -> Price:
    """The price of one execution of a kernel.

    Args:
        work: What the kernel does.
        cluster: Whose GPU runs it.
        constants: What that GPU reaches of its peaks.
    """
    gpu = cluster.gpu
    memory_rate = gpu.memory_bytes_per_s * constants.memory_efficiency
    bounds = {
        "arithmetic": _arithmetic_seconds(work, gpu, constants),
        "memory": work.hbm_bytes / memory_rate,
        "host link": work.host_bytes / cluster.to_host.bytes_per_s,
    }
    bound = max(bounds, key=lambda name: bounds[name])
    longest = bounds[bound]
    seconds = longest + constants.launch_seconds
    reached = {
        "arithmetic": _mean_efficiency(work, constants),
        "memory": constants.memory_efficiency,
        "host link": 1.0,
    }
    share = reached[bound] * longest / seconds
    return Price(
        seconds, bound if longest > constants.launch_seconds else "launch", share
    )


def _arithmetic_seconds(work: Work, gpu: Gpu, constants: Constants) -> float:
    in_matmuls = sum(matmul.flops for matmul in work.matmuls)
    seconds = sum(_matmul_seconds(m, gpu, constants) for m in work.matmuls)
    rest = max(0.0, work.flops - in_matmuls)
    if work.kind in ("matmul", "convolution", "attention"):
        # Library kernels whose shape is not known in detail still use tensor cores.
        kind = work.matmuls[0].lhs if work.matmuls else "bf16"
        return seconds + rest / _matmul_rate(kind, gpu, constants)
    return seconds + rest / gpu.vector_flops_per_s["f32"]


def _matmul_seconds(matmul: Matmul, gpu: Gpu, constants: Constants) -> float:
    return matmul.flops / _matmul_rate(matmul.lhs, gpu, constants)


def _matmul_rate(element_type: str, gpu: Gpu, constants: Constants) -> float:
    key = _rate_key(element_type, gpu.dense_flops_per_s)
    if key in gpu.dense_flops_per_s:
        return gpu.dense_flops_per_s[key] * _efficiency(key, constants)
    return gpu.vector_flops_per_s[key] * _efficiency(key, constants)


def _efficiency(key: str, constants: Constants) -> float:
    efficiencies = constants.matmul_efficiency
    return efficiencies.get(key, efficiencies["other"])


def _rate_key(element_type: str, dense: Mapping[str, float]) -> str:
    """The rate that a matmul of this element type runs at."""
    if element_type == "f32":
        # XLA lets f32 matmuls use TensorFloat-32 unless the program forbids it.
        return "tf32"
    if element_type in ("f64", "c128"):
        return "f64"
    if element_type == "c64":
        return "f32"
    key = element_type
    for family in ("f4", "f8"):
        if element_type.startswith(family):
            key = family
    if element_type in ("u8", "s4", "u4"):
        key = "s8"
    # What the tensor cores do not know is widened to bf16.
    return key if key in dense else "bf16"


def _mean_efficiency(work: Work, constants: Constants) -> float:
    if not work.matmuls:
        return 1.0
    return _efficiency(work.matmuls[0].lhs, constants)
