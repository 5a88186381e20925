"""What a stage is asked, and what it answers."""

from __future__ import annotations

import dataclasses
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

Json: TypeAlias = Any
"""What `json` writes."""


class CannotRunError(Exception):
    """A stage cannot run on this machine; its text says why, and what would help."""


def say(line: str) -> None:
    """Tells whoever waits for a stage how far it is."""
    print(line, file=sys.stderr, flush=True)


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """What a stage is asked."""

    gpu: str
    """The record that the GPU has, as in `lagom clusters`: `h100`."""
    dry: bool
    """No GPU: the stage goes its whole way with stand-ins, and its figures mean
    nothing."""
    seconds: float
    """How long it may take, its start included. What does not fit is left out, and said
    to be; measurements come in order of importance."""
    folder: Path
    """An empty folder of its own, for logs and whatever else it writes."""
    nccl: Path | None = None
    """A library in the place of the NCCL that is installed."""


@dataclasses.dataclass(frozen=True, slots=True)
class Clock:
    """How much of a stage's time is left.

    Example:
        >>> Clock.of(Request("h100", True, 60, Path("."))).left() > 59
        True
    """

    end: float

    @classmethod
    def of(cls, request: Request) -> Clock:
        """Starts now."""
        return cls(time.monotonic() + request.seconds)

    def left(self) -> float:
        """Seconds; negative once it is over."""
        return self.end - time.monotonic()


@dataclasses.dataclass(frozen=True, slots=True)
class Spread:
    """What was measured several times.

    Example:
        >>> Spread.of([3.0, 1.0, 2.0, 2.0, 9.0])
        Spread(median=2.0, low=2.0, high=3.0, count=5)
    """

    median: float
    low: float
    """A quarter of the measurements is below."""
    high: float
    """A quarter is above."""
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        quarters = (
            statistics.quantiles(values, method="inclusive")
            if len(values) > 1
            else [*values] * 3
        )
        return cls(quarters[1], quarters[0], quarters[2], len(values))


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One thing that was measured, beside what was expected of it.

    Example:
        >>> row = Row("matmuls", "4096 x 4096 x 4096", Spread(2.0, 2.0, 2.0, 5), 1.5)
        >>> row.error
        -0.25
    """

    series: str
    """Rows of one series are of one kind: a table, and a colour in a plot."""
    what: str
    """What tells it from the other rows of its series."""
    measured: Spread
    predicted: float | None = None
    """By the model; None where it says nothing."""
    unit: str = "us"
    kept_out: bool = False
    """Nothing was fitted to it."""
    fitted: float | None = None
    """By the model with the constants that this run would give it; None where it
    proposes none."""
    details: dict[str, Json] = dataclasses.field(default_factory=dict[str, Json])
    """Whatever else belongs to it: numbers and words."""

    @property
    def error(self) -> float | None:
        """How far the prediction is off, as a part of what was measured."""
        if self.predicted is None:
            return None
        return self.predicted / self.measured.median - 1


@dataclasses.dataclass(frozen=True, slots=True)
class Score:
    """One line of what a stage shows, beside what it should be.

    Example:
        >>> Score("slowdown of kernels, median error", 0.03, most=0.05).met
        True
    """

    what: str
    value: float
    most: float | None = None
    """The goal: no more than that."""
    least: float | None = None
    """The goal: no less than that."""
    unit: str = ""
    """`%` for shares, which are written as parts of one here; `s` for seconds."""
    kept_out: bool = False
    """It is of rows that nothing was fitted to."""

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None where there is none."""
        if self.most is None and self.least is None:
            return None
        return (self.most is None or self.value <= self.most) and (
            self.least is None or self.value >= self.least
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Update:
    """A constant of the GPU's record, as this run measured it.

    A stage asks for one only where the constant makes rows better that it was not
    fitted to.
    """

    section: str
    """`kernels` or `sharing`, as in `lagom_jax.cost.measured`."""
    name: str
    value: Json
    source: str
    """What it was measured with, without date and versions: those are added."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What a stage found."""

    rows: Sequence[Row] = ()
    scores: Sequence[Score] = ()
    findings: Sequence[str] = ()
    """What disagrees with the model, or with what was expected, in whole sentences."""
    left_out: Sequence[str] = ()
    """What was not measured, and why."""
    updates: Sequence[Update] = ()
    versions: dict[str, str] = dataclasses.field(default_factory=dict[str, str])
    """Of what only the stage knows, such as the NCCL that it loaded."""
