"""Description, for XLA's GPU compiler, of a GPU that is not there.

The compiler takes a text proto, `GpuTargetConfigProto`, and trusts it: without
`threads_per_warp` it dies of a division by zero, without clock, lanes, cores, bandwidth
or memory size it makes worse schedules and says nothing. So the text is written from
a complete record only, and only if every figure is in a believable range, which also
catches figures in the wrong unit.
"""

from __future__ import annotations

import math
import re

from lagom_jax.cluster.cluster import Cluster
from lagom_jax.cluster.hardware import Gpu
from lagom_jax.errors import ClusterError, ToolchainError

_BELIEVABLE = {
    "sm_count": (1, 2000),
    "fp32_lanes_per_sm": (16, 1024),
    "boost_clock_hz": (300e6, 10e9),
    "memory_bytes": (2**30, 2**43),
    "memory_bytes_per_s": (10e9, 1e15),
    "l2_bytes": (2**18, 2**33),
    "shared_memory_bytes_per_sm": (2**14, 2**24),
    "shared_memory_bytes_per_block": (2**14, 2**24),
    "shared_memory_bytes_per_block_optin": (2**14, 2**24),
    "registers_per_sm": (2**14, 2**20),
    "registers_per_block": (2**14, 2**20),
    "threads_per_sm": (512, 2**14),
    "threads_per_block": (256, 2**13),
    "threads_per_warp": (32, 32),
    "blocks_per_sm": (1, 1024),
}

# The versions of cuDNN and CUDA that the target is said to run. XLA asks them which
# library calls it may emit; these are what its CUDA 12 plugins are built for.
_CUDNN = (9, 8)
_CUDA = (12, 9)

# XLA refuses a target with fields it does not know: 0.10.2 does not know these, 0.12
# does. Where in between they came does not matter: a field left out is no error.
_OCCUPANCY_FIELDS_SINCE = (0, 12)


def target_config(gpu: Gpu, jaxlib_version: str) -> str:
    """The GPU as a `GpuTargetConfigProto` in text form.

    Args:
        gpu: what the program is compiled for.
        jaxlib_version: version of jaxlib and the plugin that will read the text;
            the fields that they know differ.

    Returns:
        The text for `get_topology_desc(platform="cuda", target_config=...)`.

    Raises:
        ClusterError: a figure of the GPU is not believable.
        ToolchainError: `jaxlib_version` is no version.

    Example:
        >>> text = target_config(Cluster.parse("h100").gpu, "0.10.2")
        >>> "core_count: 132" in text and "threads_per_warp: 32" in text
        True
    """
    _check(gpu)
    version = re.match(r"(\d+)\.(\d+)", jaxlib_version)
    if not version:
        raise ToolchainError(
            f"{jaxlib_version!r} is no version of jaxlib; expected one such as 0.10.2"
        )
    fields: dict[str, str | int] = {
        "threads_per_block_limit": gpu.threads_per_block,
        "threads_per_warp": gpu.threads_per_warp,
        "shared_memory_per_block": gpu.shared_memory_bytes_per_block,
        "shared_memory_per_block_optin": gpu.shared_memory_bytes_per_block_optin,
        "shared_memory_per_core": gpu.shared_memory_bytes_per_sm,
        "threads_per_core_limit": gpu.threads_per_sm,
        "registers_per_core_limit": gpu.registers_per_sm,
        "registers_per_block_limit": gpu.registers_per_block,
        "core_count": gpu.sm_count,
        "fpus_per_core": gpu.fp32_lanes_per_sm,
        "clock_rate_ghz": f"{gpu.boost_clock_hz / 1e9:g}",
        "memory_bandwidth": gpu.memory_bytes_per_s,
        "device_memory_size": gpu.memory_bytes,
        "l2_cache_size": gpu.l2_bytes,
        "cuda_compute_capability": _compute_capability(gpu),
        "device_vendor": '"NVIDIA Corporation"',
        "name": f'"{gpu.xla_device_name}"',
    }
    for axis, grid, block in zip(
        "xyz", gpu.grid_size_limit, gpu.block_size_limit, strict=True
    ):
        fields[f"block_dim_limit_{axis}"] = grid
        fields[f"thread_dim_limit_{axis}"] = block
    if gpu.nvlink_links:
        fields["device_interconnect_info"] = f"{{ active_links: {gpu.nvlink_links} }}"
    if (int(version[1]), int(version[2])) >= _OCCUPANCY_FIELDS_SINCE:
        fields["max_blocks_per_multiprocessor"] = gpu.blocks_per_sm
        fields["reserved_shared_memory_per_block"] = (
            gpu.shared_memory_bytes_reserved_per_block
        )
    return "\n".join(
        [
            "gpu_device_info {",
            *(f"  {_field(name, value)}" for name, value in fields.items()),
            "}",
            'platform_name: "CUDA"',
            f"dnn_version_info {{ major: {_CUDNN[0]} minor: {_CUDNN[1]} }}",
            f"runtime_version {{ major: {_CUDA[0]} minor: {_CUDA[1]} }}",
            f'device_description_str: "{gpu.xla_device_name}"',
            "",
        ]
    )


def topology(cluster: Cluster) -> str:
    """The cluster's shape for XLA: `SLICESxHOSTSxGPUS`, a slice being a domain.

    XLA takes the GPUs of a slice as joined by a fast interconnect. Where the domains
    are not all full, slices are the largest equal parts that stay inside a domain.

    Returns:
        The text for `get_topology_desc(platform="cuda", topology=...)`.

    Example:
        >>> topology(Cluster.parse("h100:8x8"))
        '8x1x8'
        >>> topology(Cluster.parse("gb200-nvl72:36x4"))
        '2x18x4'
    """
    hosts = cluster.hosts
    in_domain = cluster.system.hosts_per_domain
    in_slice = hosts if hosts <= in_domain else math.gcd(hosts, in_domain)
    return f"{hosts // in_slice}x{in_slice}x{cluster.gpus_per_host}"


def _field(name: str, value: str | int) -> str:
    braced = isinstance(value, str) and value.startswith("{")
    return f"{name} {value}" if braced else f"{name}: {value}"


def _compute_capability(gpu: Gpu) -> str:
    match = re.fullmatch(r"(\d+)\.(\d)(a?)", gpu.compute_capability)
    if not match:
        raise ClusterError(
            f"GPU {gpu.name}: compute_capability is {gpu.compute_capability!r}; "
            "write it as in 8.0, or 9.0a where the architecture's own features count"
        )
    own = " feature_extension: ACCELERATED_FEATURES" if match[3] else ""
    return f"{{ major: {match[1]} minor: {match[2]}{own} }}"


def _check(gpu: Gpu) -> None:
    for name, (low, high) in _BELIEVABLE.items():
        value = getattr(gpu, name)
        if not low <= value <= high:
            raise ClusterError(
                f"GPU {gpu.name}: {name} is {value}, which cannot be right (expected "
                f"{low:g} to {high:g}); check the figure and its unit"
            )
    if gpu.shared_memory_bytes_per_block_optin > gpu.shared_memory_bytes_per_sm:
        raise ClusterError(
            f"GPU {gpu.name}: a block cannot have more shared memory "
            f"({gpu.shared_memory_bytes_per_block_optin} bytes) than its SM "
            f"({gpu.shared_memory_bytes_per_sm} bytes)"
        )
    if not re.fullmatch(r"[ -!#-\[\]-~]+", gpu.xla_device_name):
        raise ClusterError(
            f"GPU {gpu.name}: xla_device_name {gpu.xla_device_name!r} must be plain "
            "text without quotes and backslashes"
        )
