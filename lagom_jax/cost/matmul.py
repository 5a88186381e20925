"""Seconds of a matmul that has the GPU to itself: tiles, waves, and the best choice.

A library cuts the result into tiles, runs one tile per SM, and starts the next wave
when a wave is done; it may also split the sum over k between several SMs. Which tile
and split it takes is not known beforehand, so the best of a list is taken. Derivation,
fit and errors: docs/explanation/model.md.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lagom_jax.cluster import Gpu
from lagom_jax.cost.kernel_constants import Floats, KernelConstants, MatmulConstants
from lagom_jax.hlo.elements import element_bytes
from lagom_jax.hlo.matmul import Matmul

# Rows and columns of a tile as libraries offer them, and parts of the sum over k.
_TILES = [
    *[(256, 128), (128, 256), (128, 128), (256, 64), (64, 256)],
    *[(128, 64), (64, 128), (64, 64)],
]
_PARTS = (1, 2, 4, 8, 16)
# Libraries for Ampere and Ada also cut the sum in threes.
_PARTS_OF_GENERATION = {"8": (1, 2, 3, 4, 6, 8, 16)}
# Elements of k that a tile takes in at a time.
_STEP = 64
# The tile whose area `area_seconds` is given for.
_USUAL_AREA = 128 * 128
# However short a part of a split is, it takes as long as one of so many elements of k:
# filling and joining are paid for every part. Chosen by the scores of rows kept out.
_LEAST_PART = 768
# Arithmetic and memory traffic overlap well, but not where they take equally long.
_SHARPNESS = 4
_ACCUMULATOR_BYTES = 4
SHORT_SECONDS: Final = 20e-6
"""Below this a kernel is short: fits miss more of it."""
NOT_CACHED: Floats = np.zeros(1)
"""Of products whose operands all lie in memory."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Problems:
    """Many products at once, for which one formula is evaluated.

    Two of them are equal only if they are the same object: what follows from the sizes
    alone is then found again at no cost.

    Example:
        >>> problems = Problems.of([Matmul(1, 64, 32, 16, "bf16", "bf16", "f32")])
        >>> problems.flops, problems.out_bytes
        (array([65536.]), array([4.]))
    """

    batch: Floats
    m: Floats
    n: Floats
    k: Floats
    flops: Floats
    lhs_bytes: Floats
    """Bytes of one element."""
    rhs_bytes: Floats
    out_bytes: Floats

    @property
    def least_bytes(self) -> Floats:
        """Bytes of all operands and results, each moved once."""
        operands = self.k * (self.m * self.lhs_bytes + self.n * self.rhs_bytes)
        return self.batch * (operands + self.m * self.n * self.out_bytes)

    @classmethod
    def of(cls, matmuls: list[Matmul]) -> Problems:
        """The products of a list as arrays."""
        columns = [
            (
                *(max(1, size) for size in (x.batch, x.m, x.n, x.k)),
                x.flops,
                *(element_bytes(kind) for kind in (x.lhs, x.rhs, x.out)),
            )
            for x in matmuls
        ]
        return cls(*np.array(columns, float).T)


def rate_of(element_type: str, gpu: Gpu) -> tuple[str, float]:
    """The name of the rate that a matmul runs at, and its operations per second.

    f32 operands run as TensorFloat-32, which XLA uses unless the program forbids it;
    types that the tensor cores do not know are widened to bf16, and f64 and complex
    numbers run on plain arithmetic where there is no tensor core for them.

    Example:
        >>> from lagom_jax.cluster import Cluster
        >>> gpu = Cluster.parse("a100").gpu
        >>> [rate_of(name, gpu)[0] for name in ("f32", "f8e4m3fn", "s4", "c64")]
        ['tf32', 'bf16', 's8', 'f32']
    """
    dense, plain = gpu.dense_flops_per_s, gpu.vector_flops_per_s
    if element_type in ("f64", "c128"):
        return "f64", float(dense.get("f64", plain["f64"]))
    if element_type == "c64":
        return "f32", float(plain["f32"])
    key = {"f32": "tf32", "u8": "s8", "s4": "s8", "u4": "s8"}.get(element_type)
    if key is None:
        key = element_type[:2] if element_type[:2] in ("f4", "f8") else element_type
    if key not in dense:
        key = "bf16"
    return key, float(dense[key])


@functools.lru_cache(maxsize=1 << 14)
def matmul_seconds(matmul: Matmul, gpu: Gpu, constants: KernelConstants) -> float:
    """Seconds of one matmul kernel alone, its launch included.

    Args:
        matmul: Sizes and types of the product.
        gpu: What runs it.
        constants: What that GPU's kernels reach of its peaks.

    Example:
        >>> from lagom_jax.cluster import Cluster
        >>> from lagom_jax.cost.kernel_constants import load_kernel_constants
        >>> constants = load_kernel_constants("h100")
        >>> square = Matmul(1, 4096, 4096, 4096, "bf16", "bf16", "bf16")
        >>> round(matmul_seconds(square, Cluster.parse("h100").gpu, constants), 5)
        0.00018
    """
    rate, peak = rate_of(matmul.lhs, gpu)
    tilings = _tilings_of_one(matmul, gpu)
    return float(_predicted(tilings, peak, constants.matmul(rate))[0])


def predicted(
    problems: Problems,
    gpu: Gpu,
    peak: float,
    constants: MatmulConstants,
    cached: Floats = NOT_CACHED,
) -> Floats:
    """Seconds of many products of one number type.

    Args:
        problems: The products.
        gpu: What runs them.
        peak: Operations per second of the units that run them.
        constants: What that GPU reaches at this type.
        cached: The share of each product's bytes that is in the cache when it starts.
            In a step none is taken to be there.
    """
    return _predicted(_tilings_of(problems, gpu), peak, constants, cached)


def formula(
    problems: Problems,
    gpu: Gpu,
    peak: float,
    constants: MatmulConstants,
    cached: Floats = NOT_CACHED,
) -> Floats:
    """`predicted` without the correction: the best choice of tile and split."""
    return _best(_tilings_of(problems, gpu), peak, constants, cached)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Tilings:
    """Products cut in each way that libraries have, whatever kernels reach.

    Arrays have a row for each product and a column for each way.
    """

    problems: Problems
    gpu: Gpu
    area: Floats
    """Of a tile, in elements."""
    is_split: NDArray[np.bool_]
    is_small: NDArray[np.bool_]
    """A tile that is smaller than the largest."""
    waves: Floats
    operations: Floats
    """Of all SMs, for one element of k in each one's tile."""
    fed_bytes: Floats
    """Operands of one tile, for the same."""
    depth: Floats
    """Elements of k that a tile takes in."""
    partial_sum_bytes: Floats
    moved_bytes: Floats
    """To and from memory."""

    @classmethod
    def of(cls, problems: Problems, gpu: Gpu) -> _Tilings:
        batch, m, n, k = (
            sizes[:, None]
            for sizes in (problems.batch, problems.m, problems.n, problems.k)
        )
        lhs, rhs, out = (
            sizes[:, None]
            for sizes in (problems.lhs_bytes, problems.rhs_bytes, problems.out_bytes)
        )
        per_term = problems.flops[:, None] / (batch * m * n * k)
        rows, columns, parts = _choices(gpu.compute_capability.partition(".")[0]).T
        down, across = np.ceil(m / rows), np.ceil(n / columns)
        area = rows * columns
        depth = np.ceil(k / parts / _STEP) * _STEP
        # SMs work on a block of tiles that is about square; a side too big for the
        # cache is read again for every such block.
        block = np.sqrt(gpu.sm_count)
        again_lhs = _overflow(m * k * lhs, gpu) * np.maximum(0, across / block - 1)
        again_rhs = _overflow(n * k * rhs, gpu) * np.maximum(0, down / block - 1)
        moved = m * k * lhs * (1 + again_lhs) + n * k * rhs * (1 + again_rhs)
        return cls(
            problems,
            gpu,
            area=area,
            is_split=parts > 1,
            is_small=area < area.max(),
            waves=np.ceil(batch * down * across * parts / gpu.sm_count),
            operations=per_term * area * gpu.sm_count,
            fed_bytes=rows * lhs + columns * rhs,
            depth=np.maximum(depth, _LEAST_PART * (parts > 1)),
            partial_sum_bytes=batch * m * n * parts * 2 * _ACCUMULATOR_BYTES,
            moved_bytes=batch * (moved + m * n * out),
        )


@functools.lru_cache(maxsize=4)
def _tilings_of(problems: Problems, gpu: Gpu) -> _Tilings:
    # A fit asks for the same products under many constants.
    return _Tilings.of(problems, gpu)


@functools.lru_cache(maxsize=1 << 12)
def _tilings_of_one(matmul: Matmul, gpu: Gpu) -> _Tilings:
    # So do the models of an ensemble, one product after the other.
    return _Tilings.of(Problems.of([matmul]), gpu)


def _predicted(
    tilings: _Tilings,
    peak: float,
    constants: MatmulConstants,
    cached: Floats = NOT_CACHED,
) -> Floats:
    p = tilings.problems
    missed = constants.correction.log_factor(p.batch, p.m, p.n, p.k)
    seconds = _best(tilings, peak, constants, cached) * np.exp(missed)
    if constants.short is not None:
        part = 1 / (1 + (seconds / SHORT_SECONDS) ** 2)
        missed = constants.short.log_factor(p.batch, p.m, p.n, p.k)
        seconds = seconds * np.exp(part * missed)
    # The correction was found where neither peak is near; beyond, the peaks hold.
    from_memory = p.least_bytes / tilings.gpu.memory_bytes_per_s
    if constants.cache_bytes_per_cycle:
        from_memory = from_memory * (1 - cached)
    return np.maximum(seconds, np.maximum(p.flops / peak, from_memory))


def _best(
    t: _Tilings, peak: float, constants: MatmulConstants, cached: Floats
) -> Floats:
    gpu = t.gpu
    reached = np.where(t.is_small, constants.small_tile_share, 1.0)
    # One element of k for one tile: multiplying it, and bringing its operands in.
    multiply = t.operations / (peak * constants.arithmetic_efficiency * reached)
    feed = t.fed_bytes / (constants.feed_bytes_per_cycle * gpu.boost_clock_hz)
    join = constants.join_seconds + t.partial_sum_bytes / (
        constants.join_share * gpu.memory_bytes_per_s
    )
    tile = constants.tile_seconds + constants.area_seconds * t.area / _USUAL_AREA
    work = t.waves * (tile + t.depth * np.maximum(multiply, feed))
    work = work + np.where(t.is_split, join, 0.0)
    traffic = t.moved_bytes / (gpu.memory_bytes_per_s * constants.memory_efficiency)
    if constants.cache_bytes_per_cycle:
        rate = gpu.sm_count * gpu.boost_clock_hz * constants.cache_bytes_per_cycle
        share = np.broadcast_to(cached, t.problems.m.shape)[:, None]
        traffic = (1 - share) * traffic + share * np.minimum(
            t.moved_bytes / rate, traffic
        )
    longer = np.maximum(work, traffic)
    shorter = np.minimum(work, traffic)
    total = longer * (1 + (shorter / longer) ** _SHARPNESS) ** (1 / _SHARPNESS)
    at_peak = t.problems.flops / peak
    best = _under_power(total.min(axis=1), at_peak, constants)
    return constants.launch_seconds + best


def _under_power(
    seconds: Floats, at_peak: Floats, constants: MatmulConstants
) -> Floats:
    """Seconds where the card's power holds for less than its units could do.

    The clock falls only after a while, so that the longer a kernel the more of it runs
    at the rate that the power sustains. More work still never takes less time.
    """
    if not constants.sustained_share:
        return seconds
    sustained = at_peak / constants.sustained_share
    settled = seconds / (seconds + constants.settle_seconds)
    return seconds + settled * np.maximum(0.0, sustained - seconds)


@functools.cache
def _choices(generation: str) -> Floats:
    """The tiles and splits that libraries have for a generation of GPUs."""
    parts = _PARTS_OF_GENERATION.get(generation, _PARTS)
    return np.array([(*tile, count) for tile in _TILES for count in parts], float)


def _overflow(operand_bytes: Floats, gpu: Gpu) -> Floats:
    """0 for an operand that fills half of the cache, 1 for one that fills it."""
    return np.clip(2 * operand_bytes / gpu.l2_bytes - 1, 0, 1)
