"""Seconds of a kernel that has the GPU to itself.

Matmuls have a model of their own (`lagom_jax.cost.matmul`). Every other kernel takes
the longest of its arithmetic, its memory traffic and its traffic with the host, a
start, and the gap to the next kernel. Derivation: docs/explanation/model.md.
"""

from __future__ import annotations

import functools

from lagom_jax.cluster import Cluster, Gpu
from lagom_jax.cost.constants import Constants
from lagom_jax.cost.kernel_constants import KernelConstants
from lagom_jax.cost.matmul import Problems, matmul_seconds, rate_of
from lagom_jax.cost.prices import Price
from lagom_jax.cost.soft import soft_maximum
from lagom_jax.hlo.work import Work

# Library kernels that keep what lies between their products on the chip, so that the
# products cannot be priced one by one.
_ON_TENSOR_CORES = frozenset({"attention", "convolution", "matmul", "stated"})
# Instructions that a multiprocessor can start in a cycle: four warps of 32 threads.
_ISSUED_PER_CYCLE = 128
# What the cache moves for an element that has no neighbours beside it.
_SECTOR_BYTES = 32


def kernel_price(work: Work, cluster: Cluster, constants: Constants) -> Price:
    """The price of one execution of a kernel.

    Args:
        work: What the kernel does.
        cluster: Whose GPU runs it.
        constants: What that GPU reaches of its peaks.

    Example:
        >>> from lagom_jax.cost.constants import load_constants
        >>> cluster = Cluster.parse("h100")
        >>> copy = Work("copy", 0.0, bytes_read=1 << 30, bytes_written=1 << 30)
        >>> kernel_price(copy, cluster, load_constants(cluster)).bound
        'memory'
    """
    if work.stated_seconds is not None:
        return Price(work.stated_seconds, "stated")
    gpu, known = cluster.gpu, constants.kernels
    host_rate = cluster.to_host.bytes_per_s * known.host_link_efficiency
    bounds = {
        "arithmetic": _arithmetic_seconds(work, gpu, known),
        "memory": _traffic_seconds(work, gpu, known),
        "host link": work.host_bytes / host_rate,
    }
    bound = max(bounds, key=lambda name: bounds[name])
    start, gap = known.launch_seconds, known.gap_seconds
    if work.host_bytes:
        start, gap = known.host_link_seconds, 0.0
    elif work.kind == "reduction":
        start += known.reduction_seconds
    own = known.missed.factor(work) if known.missed else 1.0
    # A library's kernels on the tensor cores hide the shorter of the two.
    either = max if work.kind in _ON_TENSOR_CORES else soft_maximum
    both = either(bounds["arithmetic"], bounds["memory"])
    seconds = own * max(both, bounds["host link"]) + start
    products = _product_seconds(work, gpu, known)
    if products >= seconds or _is_products(work):
        # The products' own bound, and their own launch, which has the gap in it.
        seconds, start, gap = products, known.launch_seconds, 0.0
        peak_seconds = _ideal_seconds(work, gpu)
        memory = work.hbm_bytes / gpu.memory_bytes_per_s
        bound = "memory" if memory > peak_seconds else "arithmetic"
    if seconds < 2 * start:
        return Price(seconds, "launch", gap_seconds=gap)
    ideal = {
        "arithmetic": _ideal_seconds(work, gpu),
        "memory": work.hbm_bytes / gpu.memory_bytes_per_s,
        "host link": work.host_bytes / cluster.to_host.bytes_per_s,
    }
    return Price(seconds, bound, min(1.0, ideal[bound] / seconds), gap)


def memory_seconds(
    kind: str, nbytes: float, gpu: Gpu, constants: KernelConstants
) -> float:
    """Seconds that a kernel's memory traffic takes once the kernel runs.

    What fits into a share of the cache was left there by the kernel before and moves
    faster. Up to twice that size the advantage shrinks to nothing, so that more bytes
    always take longer.

    Args:
        kind: What the kernel is, one of `lagom_jax.hlo.work.KINDS`, or
            `reduction by columns`.
        nbytes: Bytes read and written.
        gpu: Whose memory and cache it is.
        constants: What kernels of this kind reach.

    Example:
        >>> from lagom_jax.cost.kernel_constants import load_kernel_constants
        >>> gpu, known = Cluster.parse("h100").gpu, load_kernel_constants("h100")
        >>> times = [memory_seconds("copy", 2.0**n, gpu, known) for n in (24, 27)]
        >>> round(times[1] / times[0], 3)
        12.0
    """
    shares = constants.memory_shares
    rate = gpu.memory_bytes_per_s * shares.get(kind, shares["other"])
    room = gpu.l2_bytes * constants.cache_share
    # 1 while everything is in the cache, 0 from twice its size on.
    cached = min(1.0, max(0.0, 2 - nbytes / room))
    gain = 1 - 1 / constants.cache_speedup
    return (nbytes - gain * cached * min(nbytes, room)) / rate


def _traffic_seconds(work: Work, gpu: Gpu, constants: KernelConstants) -> float:
    if _in_products(work):
        # What is fused to a product moves as well as the product's own operands do.
        rate, _ = rate_of(work.matmuls[0].lhs, gpu)
        share = constants.matmul(rate).memory_efficiency
        return work.hbm_bytes / (gpu.memory_bytes_per_s * share)
    kind = "reduction by columns" if work.by_columns else work.kind
    sectors = work.strided * _SECTOR_BYTES
    across = sectors / (gpu.memory_bytes_per_s * constants.sector_speedup)
    return memory_seconds(kind, work.hbm_bytes, gpu, constants) + across


def _in_products(work: Work) -> bool:
    """True if the kernel's matrix products are priced by their shapes."""
    return bool(work.matmuls) and work.kind != "attention"


@functools.lru_cache(maxsize=1 << 12)
def _is_products(work: Work) -> bool:
    """True if the kernel does nothing beside: its bytes are priced with its shapes."""
    if not _in_products(work) or work.host_bytes:
        return False
    own = Problems.of(list(work.matmuls))
    return work.hbm_bytes <= own.least_bytes.sum() and work.flops <= own.flops.sum()


def _product_seconds(work: Work, gpu: Gpu, constants: KernelConstants) -> float:
    """Seconds of a kernel's matrix products, which share one launch."""
    if not _in_products(work):
        return 0.0
    total = sum(matmul_seconds(m, gpu, constants) for m in work.matmuls)
    spared = [
        constants.matmul(rate_of(m.lhs, gpu)[0]).launch_seconds
        for m in work.matmuls[1:]
    ]
    return total - sum(spared)


def _arithmetic_seconds(work: Work, gpu: Gpu, constants: KernelConstants) -> float:
    """Arithmetic that is not in products priced by their shape."""
    if work.kind == "attention":
        peak = _tensor_peak(work, gpu)
        return work.flops / (peak * constants.attention_efficiency)
    rest = max(0.0, work.flops - sum(matmul.flops for matmul in work.matmuls))
    if work.kind in _ON_TENSOR_CORES and not work.matmuls:
        peak = _tensor_peak(work, gpu)
        return rest / (peak * constants.convolution_efficiency)
    done = rest if work.executed is None else work.executed
    issued = gpu.sm_count * gpu.boost_clock_hz * _ISSUED_PER_CYCLE
    return done * constants.issued_per_operation / issued


def _tensor_peak(work: Work, gpu: Gpu) -> float:
    # A library kernel that does not say what it multiplies is taken for bf16.
    return rate_of(work.matmuls[0].lhs if work.matmuls else "bf16", gpu)[1]


def _ideal_seconds(work: Work, gpu: Gpu) -> float:
    """Arithmetic at the peak of the units that do it."""
    if work.kind in _ON_TENSOR_CORES and not _in_products(work):
        return work.flops / _tensor_peak(work, gpu)
    rest = max(0.0, work.flops - sum(matmul.flops for matmul in work.matmuls))
    in_products = sum(m.flops / rate_of(m.lhs, gpu)[1] for m in work.matmuls)
    return in_products + rest / gpu.vector_flops_per_s["f32"]
