"""A stage: one question, what it is asked with, and what it answers."""

from __future__ import annotations

import dataclasses
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final


class CannotRunError(Exception):
    """A stage cannot run on this machine; its text says why, and what would help."""


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """A claim that one GPU can refute."""

    text: str
    if_refuted: str
    """Consequence of a refutation: what is then wrong, and what to do until it is
    mended."""


STAGES: Final = {
    "contention": Question(
        "Do NCCL and kernels slow each other as the model says?",
        "Predicted steps with overlap are off on this GPU, and with them what a plan "
        "prefers. If constants were fitted and still miss, the law itself is wrong; "
        "else put them into the record with --update.",
    ),
    "obeyed": Question(
        "Does NCCL do what the tuner plugin says, call by call?",
        "Settings of a plan are not what runs: use plans without the lever `settings` "
        "with this release of NCCL.",
    ),
    "schedule": Question(
        "Is the schedule compiled without a GPU the one compiled on it?",
        "Plans made on a laptop are for another program: make them where they run, "
        "with `--lagom=tune`, and take reports from dumps.",
    ),
    "job": Question(
        "Does a job train as before behind `--lagom=tune`?",
        "Do not tune jobs with this version: leave `--lagom` off.",
    ),
    "calibration": Question(
        "Does a calibration from one real step bring other steps nearer?",
        "Do not use `lagom calibrate --profile` here, but single operations.",
    ),
}
"""All stages, in the order in which they run; each is a module of this package."""


def say(line: str) -> None:
    """Reports the progress of a stage to whoever waits for it."""
    print(line, file=sys.stderr, flush=True)


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """What a stage is asked with."""

    gpu: str
    """Record of the GPU, as in `lagom clusters`: `h100`."""
    dry: bool
    """No GPU: stand-ins at small sizes, whose figures mean nothing."""
    seconds: float
    """Time limit, the start included. What does not fit is left out and listed, so
    measurements come in order of importance."""
    folder: Path
    """An empty folder of the stage's own, for logs and tables."""
    nccl: Path | None = None
    """A library in the place of the NCCL that is installed."""

    @property
    def patience(self) -> float:
        """Seconds after which something that is waited for counts as hung.

        Example:
            >>> Request("h100", False, 280.0, Path(".")).patience
            20.0
        """
        # Something that hangs must leave enough time to report it.
        return min(20.0, 0.1 * self.seconds)


@dataclasses.dataclass(frozen=True, slots=True)
class Clock:
    """Remaining time of a stage.

    Example:
        >>> Clock.of(Request("h100", True, 60, Path("."))).left() > 59
        True
    """

    end: float

    @classmethod
    def of(cls, request: Request) -> Clock:
        """A clock that starts now."""
        return cls(time.monotonic() + request.seconds)

    def left(self) -> float:
        """Seconds; negative once it is over."""
        return self.end - time.monotonic()


@dataclasses.dataclass(frozen=True, slots=True)
class Spread:
    """Median and quarters of repeated measurements.

    Example:
        >>> Spread.of([3.0, 1.0, 2.0, 2.0, 9.0])
        Spread(median=2.0, low=2.0, high=3.0, count=5)
    """

    median: float
    low: float
    """Lower quartile."""
    high: float
    """Upper quartile."""
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of at least one value."""
        quarters = (
            statistics.quantiles(values, method="inclusive")
            if len(values) > 1
            else [*values] * 3
        )
        return cls(quarters[1], quarters[0], quarters[2], len(values))


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One measured number, with the prediction for it.

    Example:
        >>> Row("steps", "phi-2", Spread(2.0, 2.0, 2.0, 5), "ms", 1.5).error
        -0.25
    """

    series: str
    """Title of the table that it belongs to."""
    what: str
    """Name within its series."""
    measured: Spread
    unit: str
    predicted: float | None = None
    """By the model; None where it predicts nothing."""
    kept_out: bool = False
    """Nothing was fitted to it."""
    details: dict[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    """More numbers and words, by the column's title."""

    @property
    def error(self) -> float | None:
        """Relative error of the prediction."""
        if self.predicted is None:
            return None
        return self.predicted / self.measured.median - 1


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """A number that answers the question, with the goal that it has to meet.

    Example:
        >>> Check("slowdown of kernels, median error", 0.03, at_most=0.05).met
        True
        >>> Check("predicted over measured", 1.02).met is None
        True
    """

    what: str
    value: float
    at_most: float | None = None
    at_least: float | None = None
    unit: str = ""
    """`%` for shares, which are parts of one here."""

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None where there is none."""
        if self.at_most is None and self.at_least is None:
            return None
        return (self.at_most is None or self.value <= self.at_most) and (
            self.at_least is None or self.value >= self.at_least
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """A file that `lagom calibrate` reads."""

    option: str
    """Option that takes it, such as `--matmuls`."""
    path: str
    """Place below the stage's folder."""
    more: tuple[str, ...] = ()
    """Options that go with it; a word that names a file is below the same folder."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What a stage found."""

    checks: Sequence[Check] = ()
    rows: Sequence[Row] = ()
    findings: Sequence[str] = ()
    """Each disagreement with the model or the plan, as a sentence for people."""
    left_out: Sequence[str] = ()
    """What was not measured, and why."""
    constants: dict[str, float | bool] = dataclasses.field(
        default_factory=dict[str, float | bool]
    )
    """Constants of `cost.sharing` as measured here, by name."""
    tables: Sequence[Table] = ()
    versions: dict[str, str] = dataclasses.field(default_factory=dict[str, str])
    """Versions that only the stage knows, such as the NCCL that it loaded."""
