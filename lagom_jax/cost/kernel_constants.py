"""Efficiencies of real kernels against the data sheet, per GPU.

The constants are records, each with its source. `constants/kernels/*.json` has those
of matmuls, fitted to measurements by `scripts/fit_matmuls.py`; a GPU or number type
without measurements borrows them, and what it borrowed from is written beside it. Of
other kernels `constants/estimated/kernels.json` has estimates for any GPU. What was
measured on a GPU (`constants/measured/*.json`, see `measured.py`) takes their place,
one by one.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import statistics
import zlib
from collections.abc import Mapping
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

from lagom_jax.cost.measured import measured
from lagom_jax.cost.spread import NOTHING_MISSED, Spread, borrowed, spread_of
from lagom_jax.errors import ClusterError
from lagom_jax.hlo.work import Work

Floats = npt.NDArray[np.float64]
_NORMAL = statistics.NormalDist()


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Correction:
    """Correction of the formula: the logarithm of a factor on a few sizes.

    Between the knots it is interpolated in the logarithms of the sizes; outside it
    stays as it is at the edge. It never falls as a size grows.

    Example:
        >>> doubling = np.log([[[[1.0]]], [[[2.0]]]])
        >>> factor = Correction((1.0, 4.0), (256.0,), (256.0,), (256.0,), doubling)
        >>> float(factor.log_factor(np.array([2.0]), *np.full((3, 1), 512.0))[0])
        0.3465...
    """

    batch: tuple[float, ...]
    m: tuple[float, ...]
    n: tuple[float, ...]
    k: tuple[float, ...]
    log_factors: Floats
    """One for each combination of knots, in the order of the fields above."""

    @property
    def knots(self) -> tuple[tuple[float, ...], ...]:
        """The sizes that the factors are given for, axis by axis."""
        return (self.batch, self.m, self.n, self.k)

    def log_factor(self, batch: Floats, m: Floats, n: Floats, k: Floats) -> Floats:
        """The logarithm of the factor for products of these sizes."""
        found = np.asarray(self.log_factors)
        sizes = (batch, m, n, k)
        if len(batch) == 1:
            # One product after another, each asked of every model of an ensemble.
            weights = _weights_of_one(self.knots, tuple(float(n[0]) for n in sizes))
        else:
            weights = hat_weights(self.knots, sizes)
        return weights @ found.reshape(-1)


@functools.lru_cache(maxsize=1 << 12)
def _weights_of_one(
    knots: tuple[tuple[float, ...], ...], sizes: tuple[float, ...]
) -> Floats:
    return hat_weights(knots, tuple(np.array([size]) for size in sizes))


def hat_weights(
    knots: tuple[tuple[float, ...], ...], sizes: tuple[Floats, ...]
) -> Floats:
    """Weight of every combination of knots for each product.

    Returns:
        One row for each product; the weights in a row add up to 1.

    Example:
        >>> hat_weights(((1.0, 4.0),), (np.array([2.0, 16.0]),))
        array([[0.5, 0.5], [0. , 1. ]])
    """
    total = np.ones((len(sizes[0]), 1))
    for axis, values in zip(knots, sizes, strict=True):
        places, at = np.log2(axis), np.log2(values)
        hats = np.stack(
            [np.interp(at, places, unit) for unit in np.eye(len(axis))], axis=1
        )
        total = (total[:, :, None] * hats[:, None, :]).reshape(len(total), -1)
    return total


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class MatmulConstants:
    """Efficiencies of a GPU's matmul kernels for one number type."""

    launch_seconds: float
    """Start and end of the kernel, whatever its size."""
    arithmetic_efficiency: float
    """Share of the dense peak in the main loop."""
    feed_bytes_per_cycle: float
    """Operand bytes that one SM can take in per cycle of the boost clock."""
    tile_seconds: float
    """Filling the pipeline of a tile and writing its results."""
    memory_efficiency: float
    """Share of the memory's peak."""
    join_seconds: float
    """Waiting for the parts of a sum that was split over k."""
    join_share: float
    """Rate at which partial sums are exchanged, over the memory's peak."""
    correction: Correction
    calibrated: bool
    source: str
    cache_bytes_per_cycle: float = 0.0
    """Bytes that a benchmark's loop gets out of the cache, per SM and cycle of the
    boost clock; 0 where nobody told them from the memory's. Steps have no such loop."""
    small_tile_share: float = 1.0
    """Share of `arithmetic_efficiency` that tiles smaller than the largest reach."""
    area_seconds: float = 0.0
    """Beside `tile_seconds`, of a tile of 128 x 128; of others by their area."""
    sustained_share: float = 0.0
    """Share of the dense peak that the card's power sustains; 0 where nobody told it
    from the main loop's."""
    settle_seconds: float = 0.0
    """Length of a repeated kernel that is halfway from the main loop's rate to the
    sustained one."""
    spread: Spread = NOTHING_MISSED
    """Error left over, of kernels of 20 us and more and of shorter ones."""
    short: Correction | None = None
    """Errors of a member of an ensemble in short kernels, beside those in all; None for
    none."""


@dataclasses.dataclass(frozen=True, slots=True)
class OwnErrors:
    """Errors of single kernels: every kernel has its own, wherever it occurs.

    Example:
        >>> from lagom_jax.hlo.work import Work
        >>> errors, copy = OwnErrors("member 1", 0.3), Work("copy", 0.0, 1024, 1024)
        >>> errors.factor(copy) == OwnErrors("member 1", 0.3).factor(copy)
        True
        >>> OwnErrors("member 1", 0.0).factor(copy)
        1.0
    """

    name: str
    """Another one draws other errors."""
    spread: float
    """Standard deviation of their logs."""

    def factor(self, work: Work) -> float:
        """Factor of a kernel's time."""
        sizes = (work.flops, work.bytes_read, work.bytes_written, work.host_bytes)
        drawn = zlib.crc32(f"{self.name}/{work.kind}/{sizes}".encode())
        normal = _NORMAL.inv_cdf((drawn + 0.5) / 2**32)
        # So that kernels take as long as their kind on average.
        return math.exp(self.spread * normal - self.spread**2 / 2)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class KernelConstants:
    """Efficiencies of all kinds of kernels on a GPU.

    Two of them are equal only if they are the same object, so that remembering
    prices under them is cheap.
    """

    gpu: str
    launch_in_table_seconds: float
    """Of a launch, in the times of a published table of matmuls."""
    matmuls: Mapping[str, MatmulConstants]
    """By the name of the rate in `Gpu.dense_flops_per_s`; `other` for the rest."""
    start_seconds: float
    """Start and drain of a kernel that is no matmul."""
    reduction_seconds: float
    """Further seconds of a reduction's start and drain."""
    gap_seconds: float
    """From the end of a kernel that is no matmul to the start of the next."""
    memory_shares: Mapping[str, float]
    """Share of the memory's peak by kind of kernel; `other` for the rest."""
    attention_efficiency: float
    convolution_efficiency: float
    issued_per_operation: float
    """Issue slots that an operation on one element takes, index arithmetic and loads
    included."""
    host_link_efficiency: float
    host_link_seconds: float
    cache_speedup: float
    """Speed, over that of memory, of data that fits into `cache_share`."""
    cache_share: float
    """Share of the second-level cache that the next kernel still finds filled."""
    sector_speedup: float
    """Rate of single sectors of the second-level cache, over the memory's peak."""
    missed: OwnErrors | None = None
    """Errors of single kernels beside those of their kind; None for none."""

    @property
    def launch_seconds(self) -> float:
        """Start, drain and gap of a kernel that is no matmul."""
        return self.start_seconds + self.gap_seconds

    def matmul(self, rate: str) -> MatmulConstants:
        """The constants of matmuls at one of the GPU's rates."""
        return self.matmuls.get(rate) or self.matmuls["other"]


@functools.cache
def load_kernel_constants(gpu: str) -> KernelConstants:
    """The kernel constants of a GPU.

    Example:
        >>> h100 = load_kernel_constants("h100")
        >>> h100.matmul("bf16").calibrated, h100.matmul("f8").calibrated
        (True, False)
    """
    constants = resources.files(__name__.rpartition(".")[0]) / "constants"
    record = load_matmul_record(gpu)
    estimated = json.loads((constants / "estimated" / "kernels.json").read_text())
    others: dict[str, Any] = {
        name: item["value"] for name, item in estimated["kernels"].items()
    }
    for name, value in measured(gpu, "kernels").items():
        # Kinds of kernels that were not measured keep what is estimated.
        old = others[name]
        others[name] = {**old, **value} if isinstance(old, dict) else value
    return KernelConstants(
        gpu=gpu,
        launch_in_table_seconds=record.get("launch_in_table_seconds", {"value": 0.0})[
            "value"
        ],
        matmuls={name: _matmul(item) for name, item in record["matmuls"].items()},
        **others,
    )


def load_matmul_record(gpu: str) -> dict[str, Any]:
    """The record about a GPU's matmuls as it is in its file.

    Raises:
        ClusterError: There is none about that GPU.

    Example:
        >>> load_matmul_record("h100")["gpu"]
        'h100'
    """
    folder = resources.files(__name__.rpartition(".")[0]) / "constants" / "kernels"
    path = folder / f"{gpu}.json"
    if not path.is_file():
        raise ClusterError(
            f"there are no kernel constants for the GPU '{gpu}'; known are "
            + ", ".join(sorted(p.name[:-5] for p in folder.iterdir()))
            + ". How to add one: 'Add a GPU' in CONTRIBUTING.md"
        )
    return json.loads(path.read_text())


def _matmul(item: dict[str, Any]) -> MatmulConstants:
    correction: dict[str, Any] = item["correction"]
    return MatmulConstants(
        **item["value"],
        correction=Correction(
            **{name: tuple(correction[name]) for name in ("batch", "m", "n", "k")},
            log_factors=np.array(correction["log_factors"]),
        ),
        calibrated=item["calibrated"],
        source=item["source"],
        spread=spread_of(
            item.get("errors", {}), "20 us and more", "below 20 us", borrowed("matmuls")
        ),
    )
