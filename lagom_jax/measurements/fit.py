"""Fitting a calibration to samples, and asking what it is worth."""

from __future__ import annotations

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from lagom_jax.measurements.curve import Curve, fit_curve
from lagom_jax.measurements.samples import Key, Sample, unit_of

# Sizes are dealt into so many parts; each is predicted by a fit to the others.
_PARTS = 5
_LEAST_SIZES = 4
_WORST_MAY_GROW = 1.25


@dataclasses.dataclass(frozen=True, slots=True)
class Error:
    """Errors of predictions, as parts of the measured time."""

    median: float
    worst_tenth: float
    """The 90th percentile."""


@dataclasses.dataclass(frozen=True, slots=True)
class FittedCurve:
    """A curve for one kind of task, and how good it is."""

    key: Key
    unit: str
    """The unit of sizes: `bytes` or `operations`."""
    curve: Curve
    """Empty where a correction would not have helped."""
    rows: int
    sizes: tuple[float, float]
    """The least and the greatest that was measured."""
    spread: float
    """A typical distance of single measurements from the curve, as a part."""
    before: Error
    after: Error
    """On the rows that it was fitted to."""
    kept_out: Error | None
    """On sizes that the fit had not seen; None with too few sizes to ask."""


def fit_corrections(samples: Iterable[Sample]) -> tuple[FittedCurve, ...]:
    """A correction for each kind of task that was measured.

    A correction that does not make sizes better that were kept out of its fit is
    dropped: its curve is empty, and its errors after are those before.

    Example:
        >>> key = Key("kernel", "fusion")
        >>> samples = [Sample(key, 2.0**i, 1.0, 1.5) for i in range(10, 30)]
        >>> (found,) = fit_corrections(samples)
        >>> round(found.before.median, 2), found.kept_out.median < 0.02
        (0.33, True)
    """
    by_key: defaultdict[Key, list[Sample]] = defaultdict(list)
    for sample in samples:
        by_key[sample.key].append(sample)
    return tuple(_correction(key, by_key[key]) for key in sorted(by_key))


def errors(samples: Sequence[Sample], factors: Sequence[float]) -> Error:
    """Errors of the model with each of its times multiplied by a factor."""
    off = [
        abs(sample.predicted * factor / sample.measured - 1)
        for sample, factor in zip(samples, factors, strict=True)
    ]
    return Error(float(np.median(off)), float(np.quantile(off, 0.9)))


def _correction(key: Key, samples: Sequence[Sample]) -> FittedCurve:
    curve = _fit(samples)
    before = errors(samples, [1.0] * len(samples))
    kept_out = _kept_out(samples)
    if kept_out is not None and not better(kept_out, before):
        curve, kept_out = Curve(()), before
    factors = [curve.factor(sample.size) for sample in samples]
    distances = [
        abs(np.log(sample.measured / (sample.predicted * factor)))
        for sample, factor in zip(samples, factors, strict=True)
    ]
    sizes = [sample.size for sample in samples]
    return FittedCurve(
        key=key,
        unit=unit_of(key),
        curve=curve,
        rows=len(samples),
        sizes=(min(sizes), max(sizes)),
        spread=float(np.expm1(1.4826 * statistics.median(distances))),
        before=before,
        after=errors(samples, factors),
        kept_out=kept_out,
    )


def better(after: Error, before: Error) -> bool:
    """True if the median error is smaller, and the worst tenth not much larger."""
    worst = before.worst_tenth * _WORST_MAY_GROW
    return after.median < before.median and after.worst_tenth <= worst


def _fit(samples: Sequence[Sample]) -> Curve:
    return fit_curve(
        [sample.size for sample in samples],
        [sample.measured / sample.predicted for sample in samples],
    )


def _kept_out(samples: Sequence[Sample]) -> Error | None:
    sizes = sorted({sample.size for sample in samples})
    if len(sizes) < _LEAST_SIZES:
        return None
    part = {size: place % _PARTS for place, size in enumerate(sizes)}
    factors = [1.0] * len(samples)
    for number in range(_PARTS):
        curve = _fit([s for s in samples if part[s.size] != number])
        for place, sample in enumerate(samples):
            if part[sample.size] == number:
                factors[place] = curve.factor(sample.size)
    return errors(samples, factors)
