"""Parts of a cluster: GPUs and links, with the source of every figure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import cast


@dataclasses.dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU: published limits and peak rates, nothing measured or fitted.

    Example:
        >>> from lagom_jax.cluster import Cluster
        >>> gpu = Cluster.parse("h100").gpu
        >>> gpu.sm_count, gpu.dense_flops_per_s["bf16"]
        (132, 989400000000000)
        >>> gpu.sources["memory_bytes_per_s"]
        "XLA's specification of the NVIDIA H100 80GB HBM3, ..."
    """

    name: str
    title: str
    xla_device_name: str
    """The name that XLA and CUDA give the device; XLA selects some tables by it."""
    compute_capability: str
    """As in `sm_90a`: `9.0a` with the architecture's own features, `8.0` without."""
    sm_count: int
    """Streaming multiprocessors in use, not those of the whole die."""
    fp32_lanes_per_sm: int
    boost_clock_hz: int
    """The highest clock of a data sheet, which its peak rates assume."""
    memory_bytes: int
    """Memory that the driver reports, a little below the advertised size."""
    memory_bytes_per_s: int
    """Peak bandwidth of its own memory."""
    l2_bytes: int
    """Of the whole second-level cache."""
    shared_memory_bytes_per_sm: int
    shared_memory_bytes_per_block: int
    """Shared memory that a block may have without asking for more."""
    shared_memory_bytes_per_block_optin: int
    """The most that a block may ask for."""
    shared_memory_bytes_reserved_per_block: int
    """Kept of each block's by the driver."""
    registers_per_sm: int
    """Of 32 bits."""
    registers_per_block: int
    """The most that one block may have."""
    threads_per_sm: int
    threads_per_block: int
    threads_per_warp: int
    blocks_per_sm: int
    grid_size_limit: tuple[int, int, int]
    block_size_limit: tuple[int, int, int]
    nvlink_links: int
    """NVLink links in use; 0 where the system connects its GPUs otherwise."""
    dense_flops_per_s: Mapping[str, int] = dataclasses.field(hash=False)
    """Peak of the tensor cores without sparsity, by operand type: `bf16`, `f16`,
    `tf32`, `s8` and, where the GPU has them, `f8`, `f4`, `f64`."""
    vector_flops_per_s: Mapping[str, int] = dataclasses.field(hash=False)
    """Peak outside the tensor cores: `f32` and `f64`, a fused multiply-add being 2."""
    sources: Mapping[str, str] = dataclasses.field(compare=False, repr=False)
    """Sources, by field name; rates as `dense_flops_per_s.bf16`."""

    def as_dict(self) -> dict[str, object]:
        """All figures as JSON-ready data, without their sources."""
        return _figures(self)


@dataclasses.dataclass(frozen=True, slots=True)
class Link:
    """A connection as one GPU sees it.

    Example:
        >>> from lagom_jax.cluster import Cluster
        >>> Cluster.parse("h100:2x8").inside.bytes_per_s
        450000000000
    """

    name: str
    title: str
    kind: str
    """`nvlink`, `pcie`, `network` or `wan`."""
    bytes_per_s: float
    """Each direction, at the link's nominal rate: per GPU, of a WAN per region."""
    latency_s: float
    """From one end to the other for the smallest message."""
    sources: Mapping[str, str] = dataclasses.field(compare=False, repr=False)
    gpus_joined: int | None = None
    """Most GPUs that all reach each other over it, such as 2 over a bridge; None where
    all of a domain do."""

    def as_dict(self) -> dict[str, object]:
        """All figures as JSON-ready data, without their sources."""
        return _figures(self)


@dataclasses.dataclass(frozen=True, slots=True)
class System:
    """Construction of hosts and their network; a `Cluster` is a number of these."""

    name: str
    title: str
    gpu: Gpu
    inside: Link
    """Between GPUs of one scale-up domain."""
    between: Link
    """Between domains: one GPU's share of the network adapters of a full host."""
    to_host: Link
    """Between a GPU and its host's processor."""
    gpus_per_host: int
    hosts_per_domain: int
    """Hosts whose GPUs reach each other over `inside`: 1, or a whole rack."""
    nics_per_host: int
    sources: Mapping[str, str] = dataclasses.field(compare=False, repr=False)
    notes: tuple[str, ...] = ()


def _figures(record: Gpu | Link) -> dict[str, object]:
    figures = {
        field.name: getattr(record, field.name)
        for field in dataclasses.fields(record)
        if field.name != "sources"
    }
    return {key: _plain(value) for key, value in figures.items() if value is not None}


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return list(cast("tuple[int, ...]", value))
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, int]", value))
    return value
