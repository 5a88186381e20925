"""Constants of kernels, fitted to some sizes and judged by others."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from lagom_jax.cluster import Cluster
from lagom_jax.cost.compute import kernel_price
from lagom_jax.cost.constants import Constants
from lagom_jax.cost.kernel_constants import KernelConstants
from lagom_jax.cost.prices import Price
from lagom_jax.hlo.work import Work
from lagom_jax.measure.fit import Error, better, errors
from lagom_jax.measure.samples import Key, Sample, size_of
from lagom_jax.schedule.program import Kernel

Changes = Mapping[str, Any]
"""Values by the names of `KernelConstants`; of shares by kind those that change."""

_LEAST_ROWS: Final = 2
_DIGITS: Final = 3
# What a kernel takes that does next to nothing, in launches.
_LITTLE_ELSE: Final = 1.02


@dataclasses.dataclass(frozen=True, slots=True)
class Measurement:
    """One kernel, and what it took, the gap to the next one included."""

    work: Work
    seconds: float
    kept_out: bool
    """Nothing is fitted to it."""

    @classmethod
    def of(cls, kernel: Kernel, seconds: float) -> Measurement:
        """Kept out are whole sizes: every second power of two, whatever the kind.

        Example:
            >>> kernel = Kernel("k", Work("copy", 0.0, 1 << 20, 1 << 20))
            >>> Measurement.of(kernel, 1e-3).kept_out
            True
        """
        size = max(1.0, size_of(kernel))
        return cls(kernel.work, seconds, round(math.log2(size)) % 2 == 1)


@dataclasses.dataclass(frozen=True, slots=True)
class Knob:
    """Constants that are chosen together, from a list of values."""

    what: str
    values: Sequence[Changes]
    concerns: Callable[[Work, Price], bool]
    """Whether a kernel says something about them, by its work and its price so far."""


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """Values that make kernels better that were kept out of their fit."""

    what: str
    changes: Changes
    fitted: int
    kept_out: int
    before: Error
    """Of the kernels kept out."""
    after: Error

    def source(self) -> str:
        """What it was measured with."""
        return (
            f"fitted to {self.fitted} kernels; on {self.kept_out} of sizes kept out "
            f"the median error went from {self.before.median:.1%} to "
            f"{self.after.median:.1%}, the 90th percentile from "
            f"{self.before.worst_tenth:.1%} to {self.after.worst_tenth:.1%}"
        )


def fit(
    measurements: Sequence[Measurement], cluster: Cluster, constants: Constants
) -> tuple[list[Choice], Constants]:
    """Chooses the constants one after the other.

    Returns:
        The choices that hold for sizes kept out, and the constants with them.
    """
    found: list[Choice] = []
    # The difference of two times may be below zero on a busy machine.
    measurements = [one for one in measurements if one.seconds > 0]
    for knob in _knobs(constants.kernels, cluster):
        choice = _choose(knob, measurements, cluster, constants)
        if choice is not None:
            found.append(choice)
            constants = changed(constants, choice.changes)
    return found, constants


def changed(constants: Constants, changes: Changes) -> Constants:
    """The constants with some others.

    Example:
        >>> from lagom_jax.cost.constants import load_constants
        >>> old = load_constants(Cluster.parse("h100"))
        >>> new = changed(old, {"memory_shares": {"copy": 0.5}}).kernels
        >>> new.memory_shares["copy"], new.memory_shares["sort"]
        (0.5, 0.6)
    """
    old = constants.kernels
    new = {
        name: {**getattr(old, name), **value} if isinstance(value, dict) else value
        for name, value in changes.items()
    }
    return dataclasses.replace(constants, kernels=dataclasses.replace(old, **new))


def error_of(
    measurements: Sequence[Measurement], cluster: Cluster, constants: Constants
) -> Error:
    """How far the model is off under some constants."""
    samples = [
        Sample(
            Key("kernel", one.work.kind),
            0.0,
            kernel_price(one.work, cluster, constants).seconds,
            one.seconds,
        )
        for one in measurements
    ]
    return errors(samples, [1.0] * len(samples))


def _choose(
    knob: Knob,
    measurements: Sequence[Measurement],
    cluster: Cluster,
    constants: Constants,
) -> Choice | None:
    fitted = [
        one
        for one in measurements
        if not one.kept_out
        and knob.concerns(one.work, kernel_price(one.work, cluster, constants))
    ]
    if len(fitted) < _LEAST_ROWS:
        return None

    def seconds(one: Measurement, under: Constants) -> float:
        return kernel_price(one.work, cluster, under).seconds

    def distance(changes: Changes) -> float:
        under = changed(constants, changes)
        return statistics.fmean(
            abs(math.log(seconds(one, under) / one.seconds)) for one in fitted
        )

    changes = min(knob.values, key=distance)
    new = changed(constants, changes)
    if distance(changes) >= distance({}):
        return None
    # All that it changes has a say, whatever it was fitted to.
    kept_out = [
        one
        for one in measurements
        if one.kept_out and seconds(one, new) != seconds(one, constants)
    ]
    if len(kept_out) < _LEAST_ROWS:
        return None
    before, after = (error_of(kept_out, cluster, c) for c in (constants, new))
    if not better(after, before):
        return None
    return Choice(knob.what, changes, len(fitted), len(kept_out), before, after)


def _knobs(constants: KernelConstants, cluster: Cluster) -> Iterator[Knob]:
    """What depends on nothing but what came before it, in this order."""
    room = cluster.gpu.l2_bytes * constants.cache_share
    yield Knob(
        "launches",
        [{"launch_seconds": s} for s in _steps(2e-7, 2e-5, 93)],
        lambda work, price: (
            _plain(work) and price.seconds < _LITTLE_ELSE * constants.launch_seconds
        ),
    )
    for kind in constants.memory_shares:
        yield Knob(
            f"memory, {kind}",
            [{"memory_shares": {kind: s}} for s in _steps(0.02, 1.0, 159)],
            lambda work, price, kind=kind: (
                work.kind == kind
                and price.bound == "memory"
                and _plain(work)
                and work.hbm_bytes > 2 * room
            ),
        )
    yield Knob(
        "cache",
        [
            {"cache_speedup": speedup, "cache_share": share}
            for speedup, share in itertools.product(
                _steps(1.0, 6.0, 25), _steps(0.1, 1.0, 12)
            )
        ],
        lambda work, price: (
            price.bound != "arithmetic"
            and _plain(work)
            and room / 16 < work.hbm_bytes < 4 * room
        ),
    )
    yield Knob(
        "arithmetic",
        [{"vector_efficiency": e} for e in _steps(0.05, 1.0, 121)],
        lambda work, price: price.bound == "arithmetic" and _plain(work),
    )
    yield Knob(
        "attention",
        [{"attention_efficiency": e} for e in _steps(0.05, 1.0, 121)],
        lambda work, price: work.kind == "attention",
    )
    yield Knob(
        "host link",
        [
            {"host_link_efficiency": efficiency, "host_link_seconds": seconds}
            for efficiency, seconds in itertools.product(
                _steps(0.2, 1.0, 33), _steps(2e-6, 5e-5, 15)
            )
        ],
        lambda work, price: work.host_bytes > 0,
    )


def _plain(work: Work) -> bool:
    """Whether nothing but a kernel's bytes and its own arithmetic sets its time."""
    return not work.matmuls and not work.host_bytes and work.kind != "convolution"


def _steps(low: float, high: float, count: int) -> list[float]:
    """Values with equal ratios, so that none is far from the best."""
    return [float(f"{v:.{_DIGITS}g}") for v in np.geomspace(low, high, count)]
