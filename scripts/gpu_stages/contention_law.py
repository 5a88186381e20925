"""The model's law of contention for measured pairs, and constants fitted to them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from gpu_stages.contention_bench import Pair
from gpu_stages.contention_cases import CollectiveCase, KernelCase
from gpu_stages.stage import Spread
from gpu_stages.steering import RANKS
from lagom_jax.cluster import Cluster
from lagom_jax.cost.compute import kernel_price
from lagom_jax.cost.constants import Constants
from lagom_jax.cost.loads import CollectiveLoad, KernelLoad, kernel_load, memory_rate
from lagom_jax.cost.sharing import SharingConstants, collective_slowdown, slowdown
from lagom_jax.cost.span import wire_bytes
from lagom_jax.plan.setting import Setting, threads_range

Floats = npt.NDArray[np.float64]
_LINK: Final = "the GPU itself"
# Bounds of each constant that is fitted, and where the fit begins.
_FITTED: Final = {
    "eviction": (0.0, 3.0, (0.0, 0.05, 0.2, 0.8)),
    "saturating_sm_share": (0.05, 1.0, (0.3, 0.45, 0.6, 0.8)),
    "ring_passes": (0.0, 8.0, (0.25, 1.0, 2.0, 3.0, 4.0)),
}
NAMES: Final = ("persistent_kernels", *_FITTED)
"""The constants that a fit may change."""
_STARTS: Final = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """A measured pair, with all that the model takes of it."""

    kernel: KernelCase
    collective: CollectiveCase
    channels: int
    """Of each rank, as NCCL has them."""
    nbytes: int
    """As a tuner counts them."""
    pair: Pair

    @property
    def kept_out(self) -> bool:
        """Whether nothing is fitted to it."""
        return self.kernel.kept_out or self.collective.kept_out

    @property
    def kernel_slowdown(self) -> Spread:
        """Slowdown of the kernel by the collective."""
        return Spread.of(self.pair.kernel_slowdowns)

    @property
    def collective_slowdown(self) -> Spread:
        """Slowdown of the collective by the kernel."""
        return Spread.of(self.pair.collective_slowdowns)


class Predictor:
    """The model's slowdowns for pairs on one GPU."""

    def __init__(self, cluster: Cluster, constants: Constants) -> None:
        self._cluster = cluster
        self._constants = constants

    def kernel(self, row: Measured, sharing: SharingConstants) -> float:
        """Predicted slowdown of the kernel."""
        load = collective_load(row, sharing)
        return slowdown(self.kernel_load(row), [load], self._cluster.gpu, sharing)

    def collective(self, row: Measured, sharing: SharingConstants) -> float:
        """Predicted slowdown of the collective."""
        load = collective_load(row, sharing)
        gpu = self._cluster.gpu
        return collective_slowdown(load, [load], gpu)

    def kernel_load(self, row: Measured) -> KernelLoad:
        """Load of the kernel, with its measured time alone."""
        work = row.kernel.work
        price = kernel_price(work, self._cluster, self._constants)
        alone = Spread.of(row.pair.kernel_alone).median
        return kernel_load(
            work, dataclasses.replace(price, seconds=alone), self._cluster.gpu
        )

    def errors(self, rows: Iterable[Measured], sharing: SharingConstants) -> Floats:
        """Predicted less measured slowdowns of kernels."""
        return np.array(
            [self.kernel(row, sharing) - row.kernel_slowdown.median for row in rows]
        )


def collective_load(row: Measured, sharing: SharingConstants) -> CollectiveLoad:
    """Load of all ranks together on the GPU that they share.

    The link between them is the GPU's own memory, so no other link is shared.
    """
    kind = row.collective.function
    sent = wire_bytes(kind, row.nbytes, RANKS)
    alone = Spread.of(row.pair.collective_alone).median
    answer = row.collective.answer
    assert answer.algorithm is not None
    assert answer.protocol is not None
    _, threads = threads_range(answer.algorithm, answer.protocol)
    chunk = row.collective.chunk_bytes
    setting = Setting(answer.algorithm, answer.protocol, row.channels, threads, chunk)
    rate = memory_rate(sent, alone, sharing.passes(kind, setting))
    return CollectiveLoad(
        RANKS * row.channels,
        chunk,
        RANKS * rate,
        _LINK,
        0.0,
        reduces_in_full=kind == "all-reduce" and setting.protocol == "simple",
    )


def fitted(
    rows: Sequence[Measured], predictor: Predictor, old: SharingConstants
) -> SharingConstants:
    """The constants whose predictions have the least squares of errors.

    The law has steps and thresholds, so the fit begins at the best few points of a
    grid, with persistent kernels and without.

    Args:
        rows: Fitted to.
        predictor: The law.
        old: Has the constants that are not fitted.
    """

    def errors(point: Sequence[float] | Floats, persistent: bool) -> Floats:
        constants = _at(point, persistent, old)
        return predictor.errors(rows, constants)

    grid = list(itertools.product(*(starts for _, _, starts in _FITTED.values())))
    low, high = zip(*((low, high) for low, high, _ in _FITTED.values()), strict=True)
    found: list[tuple[Any, bool]] = []
    # Each law from the best of its own starts: where they differ in few rows, the best
    # starts of all may belong to one of them.
    for persistent in (True, False):
        begins = sorted(
            (float(np.square(errors(point, persistent)).sum()), point) for point in grid
        )
        found += [
            (
                least_squares(errors, point, args=(persistent,), bounds=(low, high)),
                persistent,
            )
            for _, point in begins[:_STARTS]
        ]
    best, persistent = min(found, key=lambda item: float(item[0].cost))
    return _at(best.x, persistent, old)


def worth_keeping(
    rows: Sequence[Measured],
    predictor: Predictor,
    old: SharingConstants,
    new: SharingConstants,
) -> SharingConstants:
    """The old constants, with those of the new that make kept-out rows better.

    Args:
        rows: That nothing was fitted to.
        predictor: The law.
        old: Before the fit.
        new: From the fit.
    """

    def cost(constants: SharingConstants) -> float:
        return float(np.square(predictor.errors(rows, constants)).sum())

    kept = new
    for name in NAMES:
        without = dataclasses.replace(kept, **{name: getattr(old, name)})
        if cost(without) <= cost(kept):
            kept = without
    return kept if cost(kept) < cost(old) else old


def _at(
    point: Sequence[float] | Floats, persistent: bool, old: SharingConstants
) -> SharingConstants:
    values = dict(zip(_FITTED, map(float, point), strict=True))
    return dataclasses.replace(old, persistent_kernels=persistent, **values)
