"""Intervals of predicted figures: what most of an ensemble's models say."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

from lagom_jax.errors import PlanError

OUTSIDE: Final = 20
"""One model in so many may lie below an interval, and as many above."""


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """A predicted figure, and the range that most models of an ensemble put it in.

    Example:
        >>> Interval(0.310, 0.326, 0.345).width
        0.107...
        >>> Interval(2.0, 1.0, 3.0)
        Traceback (most recent call last):
        ...
        lagom_jax.errors.PlanError: an interval from 2 over 1 to 3: not in order
    """

    low: float
    expected: float
    """By the model whose constants are the likeliest, as all other figures are."""
    high: float

    def __post_init__(self) -> None:
        """Checks the order."""
        if not self.low <= self.expected <= self.high:
            raise PlanError(
                f"an interval from {self.low:g} over {self.expected:g} to "
                f"{self.high:g}: not in order"
            )

    @classmethod
    def of(cls, expected: float, by_model: Sequence[float]) -> Interval:
        """The interval of a figure that each model of an ensemble has given.

        Of twenty models the lowest and the highest lie outside.

        Args:
            expected: By the likeliest model.
            by_model: By each of the others.

        Example:
            >>> Interval.of(10.0, [float(n) for n in range(20)])
            Interval(low=1.0, expected=10.0, high=18.0)
        """
        if not by_model:
            return cls(expected, expected, expected)
        outside = len(by_model) // OUTSIDE
        ordered = sorted(by_model)
        low, high = ordered[outside], ordered[len(ordered) - 1 - outside]
        return cls(min(low, expected), expected, max(high, expected))

    @property
    def width(self) -> float:
        """From end to end, as a part of what is expected."""
        return (self.high - self.low) / self.expected if self.expected else 0.0

    def __contains__(self, value: float) -> bool:
        """True from end to end, both included."""
        return self.low <= value <= self.high


@dataclasses.dataclass(frozen=True, slots=True)
class StepIntervals:
    """The intervals of a step and of those of its parts that models differ about."""

    step: Interval
    exposed: Interval
    """Of the time that the step waits for communication."""
    contention: Interval
    """Of the time by which communication slows kernels."""


SAME: Final = 1e-4
"""Times that differ by less than this share of a step are the same."""


def drowns(gains: Sequence[float], step_seconds: float) -> bool:
    """True if a gain drowns in what nobody knows.

    So it does where more models than may lie outside an interval see a loss, and where
    it is next to nothing on average.

    Args:
        gains: Seconds of a step that something gives, by each model of an ensemble.
        step_seconds: The step's time.

    Example:
        Nineteen gain and one loses; then two lose:

        >>> drowns([0.01] * 19 + [-0.005], 1.0)
        False
        >>> drowns([0.01] * 18 + [-0.005] * 2, 1.0)
        True
        >>> drowns([0.0] * 20, 1.0)
        True
    """
    if not gains:
        return False
    mean = sum(gains) / len(gains)
    worst = sorted(gains)[len(gains) // OUTSIDE]
    least = SAME * step_seconds
    return worst < -least or mean <= least


def outweighed(gains: Sequence[float], step_seconds: float) -> bool:
    """True if what a gain may cost weighs more than what it gives.

    Beside the program as it is a gain must not drown. Between two ways to gain, one
    that is a little behind by a few models and far ahead by the others is worth it:
    one whose gain on average is more than the losses that are part of it.

    Args:
        gains: Seconds of a step that something gives, by each model of an ensemble.
        step_seconds: The step's time.

    Example:
        >>> outweighed([0.01] * 18 + [-0.02] * 2, 1.0)
        False
        >>> outweighed([0.01] * 18 + [-0.05] * 2, 1.0)
        True
        >>> outweighed([0.0] * 20, 1.0)
        True
    """
    if not gains:
        return False
    mean = sum(gains) / len(gains)
    losses = -sum(gain for gain in gains if gain < 0) / len(gains)
    return mean <= max(SAME * step_seconds, losses)


@dataclasses.dataclass(frozen=True, slots=True)
class Uncertainty:
    """The intervals of a decision's figures, by the models of an ensemble.

    Example:
        >>> found = Uncertainty.of(
        ...     0.4, 0.3, [0.38, 0.4, 0.42], [0.29, 0.3, 0.43])
        >>> found.models, found.slower, round(found.speedup.low, 3)
        (3, 1, 0.977)
    """

    models: int
    """Of the ensemble."""
    within: int
    """Of them, those that lie inside each interval."""
    default: Interval
    """Seconds of a step with XLA's and NCCL's own choices."""
    tuned: Interval
    """Seconds of a step as decided."""
    speedup: Interval
    """The one over the other, model by model."""
    slower: int
    """Models in which the step is slower as decided."""

    @classmethod
    def of(
        cls,
        default: float,
        tuned: float,
        default_by_model: Sequence[float],
        tuned_by_model: Sequence[float],
    ) -> Uncertainty:
        """The intervals of two steps that every model has timed.

        Args:
            default: Seconds of a step as it was, by the likeliest model.
            tuned: Seconds of a step as decided, likewise.
            default_by_model: The first by each model.
            tuned_by_model: The second by each model, in the same order.
        """
        pairs = list(zip(default_by_model, tuned_by_model, strict=True))
        models = len(pairs)
        return cls(
            models=models,
            within=models - 2 * (models // OUTSIDE),
            default=Interval.of(default, default_by_model),
            tuned=Interval.of(tuned, tuned_by_model),
            speedup=Interval.of(
                times_as_fast(default, tuned),
                [times_as_fast(before, after) for before, after in pairs],
            ),
            slower=sum(after > before * (1 + SAME) for before, after in pairs),
        )


def times_as_fast(before: float, after: float) -> float:
    """The speedup from one time to another; 1 where nothing takes time.

    Example:
        >>> times_as_fast(3.0, 2.0), times_as_fast(0.0, 0.0)
        (1.5, 1.0)
    """
    return before / after if after else 1.0
