"""Models of an ensemble that the user's own measurements have narrowed.

What was measured no model may contradict: there each has the corrected time of the
likeliest one, but for what the correction missed of rows that were kept out of it: a
part for each size of its own, and the error of the curve's level, which all have in
common. What another setting does to that time is each model's own to say, and so is all
that nobody measured. Derivation: docs/how-to/calibration.md.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Final, NamedTuple

from lagom_jax.cluster import Cluster
from lagom_jax.cost.draws import Draws
from lagom_jax.cost.ensemble import Ensemble
from lagom_jax.cost.prices import Price, Prices
from lagom_jax.cost.replay import price_of
from lagom_jax.cost.spread import TENTH_BEYOND
from lagom_jax.hlo.collective import Collective
from lagom_jax.measurements.calibration import Calibrated, Calibration
from lagom_jax.measurements.curve import FADES_OVER
from lagom_jax.measurements.fit import FittedCurve
from lagom_jax.measurements.overlay import rescaled
from lagom_jax.measurements.samples import Key, key_of, size_of
from lagom_jax.program.program import Kernel, Task
from lagom_jax.settings.doubt import EnsembleMember, uncorrected

# What nine in ten rows stay below is no better known than this.
_LEAST_MISSED: Final = 0.005


def members_of(
    models: Ensemble, calibration: Calibration | None = None
) -> tuple[EnsembleMember, ...]:
    """The models of an ensemble, narrowed by a calibration.

    Args:
        models: The ensemble.
        calibration: Corrections to its likeliest model.

    Raises:
        MeasurementError: The calibration is for another system or another model.

    Example:
        >>> len(members_of(Ensemble.of(Cluster.parse("h100:1x8"))))
        20
    """
    if calibration is None:
        return uncorrected(models.members)
    likeliest = models.likeliest
    cluster = likeliest.cluster
    corrected = calibration.apply(likeliest, cluster, likeliest.digest)
    measured = _measured(calibration.corrections)
    return tuple(
        EnsembleMember(
            model,
            functools.partial(
                Anchored,
                anchor=_Anchor(
                    *(corrected, model, cluster, measured),
                    *(len(models.members), number, {}),
                ),
            ),
        )
        for number, model in enumerate(models.members)
    )


class _Range(NamedTuple):
    """The sizes that were measured of a kind of task, and what was missed there."""

    key: Key
    sizes: tuple[float, float]
    spread: float
    """Standard deviation of the log of what the correction misses of one size."""
    level_spread: float
    """The same of the curve's level."""


class _Anchor(NamedTuple):
    """All of `Anchored` that no setting changes."""

    corrected: Calibrated
    """The likeliest model, corrected, with all left to NCCL."""
    own: Prices
    """The model itself, likewise."""
    cluster: Cluster
    measured: Mapping[Key, tuple[_Range, ...]]
    """By keys whose `ranks` is 0."""
    members: int
    """The size of the ensemble."""
    member: int
    known: dict[Task, float]


@dataclasses.dataclass(frozen=True, slots=True)
class Anchored:
    """Prices of a model, held to what was measured."""

    base: Prices
    """The model under some settings."""
    anchor: _Anchor

    def kernel(self, kernel: Kernel) -> Price:
        """The price of a kernel alone."""
        return self._held(kernel, self.base.kernel(kernel))

    def collective(self, collective: Collective) -> Price:
        """The price of a collective alone."""
        return self._held(collective, self.base.collective(collective))

    def _held(self, task: Task, price: Price) -> Price:
        factor = self.anchor.known.get(task)
        if factor is None:
            factor = self.anchor.known[task] = _factor(task, self.anchor)
        return rescaled(price, price.seconds * factor)


def _factor(task: Task, anchor: _Anchor) -> float:
    """Factor that makes a model's time what was measured."""
    key = key_of(task, anchor.cluster)
    ranges = anchor.measured.get(dataclasses.replace(key, ranks=0)) if key else None
    if key is None or not ranges:
        return 1.0
    size = size_of(task)
    near = min(ranges, key=lambda one: _octaves(one.key.ranks, key.ranks))
    outside = _octaves(near.key.ranks, key.ranks) + max(
        _octaves_up(near.sizes[1], size), _octaves_up(size, near.sizes[0]), 0.0
    )
    believed = max(0.0, 1.0 - outside / FADES_OVER)
    own = price_of(task, anchor.own).seconds
    wanted = price_of(task, anchor.corrected).seconds
    if not believed or own <= 0 or wanted <= 0:
        return 1.0
    missed = near.level_spread * _normal(anchor, f"{near.key}")
    missed += near.spread * _normal(anchor, f"{near.key} {size:g}")
    return math.exp(believed * (math.log(wanted / own) + missed))


def _normal(anchor: _Anchor, name: str) -> float:
    return _normals(f"calibration {name}", anchor.members)[anchor.member]


@functools.lru_cache(maxsize=1 << 14)
def _normals(name: str, members: int) -> tuple[float, ...]:
    return Draws(members).normal(name)


def _octaves(one: float, other: float) -> float:
    return abs(_octaves_up(one, other))


def _octaves_up(one: float, other: float) -> float:
    return math.log2(max(other, 1.0) / max(one, 1.0))


def _measured(known: tuple[FittedCurve, ...]) -> dict[Key, tuple[_Range, ...]]:
    """Measured ranges, with what the corrections miss."""
    found: defaultdict[Key, list[_Range]] = defaultdict(list)
    for curve in known:
        off = (curve.kept_out or curve.after).worst_tenth
        spread = max(_LEAST_MISSED, off) / TENTH_BEYOND
        # Rows of like sizes miss alike: each octave counts as one.
        places = min(curve.rows, 1 + int(_octaves(*curve.sizes)))
        found[dataclasses.replace(curve.key, ranks=0)].append(
            _Range(curve.key, curve.sizes, spread, spread / math.sqrt(places))
        )
    return {key: tuple(ranges) for key, ranges in found.items()}
