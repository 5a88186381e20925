"""A smooth factor over size: what a calibration corrects the model by.

Sizes and factors are logarithms to the base 2 here: octaves. Derivation and bounds:
docs/how-to/calibration.md.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lagom_jax.errors import MeasurementError

LARGEST = 2.0
"""A correction is at most a factor of four, up or down."""
STEEPEST = 0.5
"""It changes by at most a factor of two over two doublings of the size."""

FADES_OVER = LARGEST / STEEPEST
"""Octaves beyond the data over which it fades out: no faster than it may change."""

_MOST_KNOTS = 6
_OCTAVES_PER_KNOT = 3.0
# How many rows one must have seen before the level, and a bend, are believed.
_LEVEL_PRIOR = 0.25
_BEND_PRIOR = 0.5
_SMOOTHNESS = 1.0
_HUBER = 1.5
_ROUNDS = 30

Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True)
class Curve:
    """A broken line through knots, level with 1 where there was no data.

    Example:
        >>> curve = Curve(((20.0, 1.0), (26.0, 0.0)))
        >>> curve.factor(2**20), curve.factor(2**26), curve.factor(2**60)
        (2.0, 1.0, 1.0)
        >>> Curve(()).factor(1)
        1.0
    """

    knots: tuple[tuple[float, float], ...]
    """Octaves of size, and of the factor, from small to large."""

    def __post_init__(self) -> None:
        """Checks that it is a line, and near 1."""
        places = [place for place, _ in self.knots]
        if places != sorted(set(places)):
            raise MeasurementError("the knots are not in order")
        if any(abs(height) > LARGEST for _, height in self.knots):
            raise MeasurementError(f"a factor is beyond {2**LARGEST:g}")

    def factor(self, size: float) -> float:
        """The factor for the model's time at this size."""
        if not self.knots:
            return 1.0
        x = math.log2(max(size, 1.0))
        places = [place for place, _ in self.knots]
        heights = [height for _, height in self.knots]
        outside = max(places[0] - x, x - places[-1], 0.0)
        left = max(0.0, 1.0 - outside / FADES_OVER)
        return float(2.0 ** (left * np.interp(x, places, heights)))

    @property
    def range(self) -> tuple[float, float]:
        """The least and the greatest factor among the sizes that were measured."""
        heights = [height for _, height in self.knots] or [0.0]
        return 2.0 ** min(heights), 2.0 ** max(heights)


@dataclasses.dataclass(frozen=True, slots=True)
class CurvesByRanks:
    """Curves for some sizes of groups, interpolated between and faded out beyond.

    Example:
        >>> two, eight = Curve(((20.0, 0.0),)), Curve(((20.0, 1.0),))
        >>> surface = CurvesByRanks(((2, two), (8, eight)))
        >>> surface.factor(2**20, 8), surface.factor(2**20, 4) == 2**0.5
        (2.0, True)
        >>> surface.factor(2**20, 8 * 2**4)
        1.0
    """

    curves: tuple[tuple[int, Curve], ...]
    """By the devices in a group, from few to many; 0 where there are no groups."""

    def factor(self, size: float, ranks: int) -> float:
        """The factor for the model's time at this size and number of ranks."""
        x = math.log2(max(ranks, 1))
        places = [math.log2(max(known, 1)) for known, _ in self.curves]
        heights = [math.log2(curve.factor(size)) for _, curve in self.curves]
        outside = max(places[0] - x, x - places[-1], 0.0)
        left = max(0.0, 1.0 - outside / FADES_OVER)
        return float(2.0 ** (left * np.interp(x, places, heights)))


def fit_curve(sizes: Sequence[float], ratios: Sequence[float]) -> Curve:
    """The curve that explains ratios best, believing no single one of them.

    Args:
        sizes: Of the tasks that were measured.
        ratios: Measured seconds over the model's.

    Example:
        >>> fit_curve([2**20, 2**21], [1.0, 1.0]).factor(2**20)
        1.0
        >>> round(fit_curve([2.0**i for i in range(30)], [1.5] * 30).factor(2**20), 2)
        1.5
    """
    if not sizes:
        return Curve(())
    x = np.log2(np.maximum(np.asarray(sizes, float), 1.0))
    y = np.log2(np.asarray(ratios, float))
    knots = _knots(x)
    basis = _hats(x, knots)
    heights = np.full(len(knots), float(np.median(y)))
    for _ in range(_ROUNDS):
        off = np.abs(y - basis @ heights)
        scale = max(_HUBER * 1.4826 * float(np.median(off)), 0.01)
        weights = np.minimum(1.0, scale / np.maximum(off, 1e-12))
        heights = _weighted(basis, y, weights)
    heights = _no_steeper(knots, np.clip(heights, -LARGEST, LARGEST))
    return Curve(
        tuple(
            (round(float(place), 4), round(float(height), 6))
            for place, height in zip(knots, heights, strict=True)
        )
    )


def _knots(x: Floats) -> Floats:
    low, high = float(x.min()), float(x.max())
    number = min(
        _MOST_KNOTS,
        len(np.unique(x)),
        1 + round((high - low) / _OCTAVES_PER_KNOT),
    )
    return (
        np.linspace(low, high, number) if number > 1 else np.array([(low + high) / 2])
    )


def _hats(x: Floats, knots: Floats) -> Floats:
    """Row i tells how much of each knot's height is the line's at `x[i]`."""
    return np.stack([np.interp(x, knots, row) for row in np.eye(len(knots))], axis=1)


def _weighted(basis: Floats, y: Floats, weights: Floats) -> Floats:
    """Heights of least squares, as a level and what each knot bends away from it."""
    knots = basis.shape[1]
    full = np.column_stack([np.ones(len(y)), basis])
    prior = np.diag([_LEVEL_PRIOR, *[_BEND_PRIOR] * knots])
    bends = np.diff(np.eye(knots), n=2, axis=0)
    prior[1:, 1:] += _SMOOTHNESS * bends.T @ bends
    found = np.linalg.solve(
        full.T @ (weights[:, None] * full) + prior, full.T @ (weights * y)
    )
    return found[0] + found[1:]


def _no_steeper(knots: Floats, heights: Floats) -> Floats:
    """The middle of the flattest lines above and below that are nowhere too steep."""
    reach = STEEPEST * np.abs(knots[:, None] - knots[None, :])
    above = np.max(heights[None, :] - reach, axis=1)
    below = np.min(heights[None, :] + reach, axis=1)
    return (above + below) / 2
