"""Evidence of a plan: its candidates, predicted times, and steps that were measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final, Literal, TypeAlias

from lagom_jax.errors import PlanError
from lagom_jax.plan.interval import Uncertainty
from lagom_jax.plan.rewrite import SiteRefusal
from lagom_jax.plan.step_parts import StepParts
from xla_flags import FlagError, OptionValue, check_tried

COSTS: Final = "fdo_profile"
"""The lever whose value is `Plan.costs`."""
ORDER: Final = "order"
"""The lever whose value is `Plan.order`."""
Status: TypeAlias = Literal[
    "ok",
    "chosen",
    "failed",
    "over memory",
    "no effect",
    "slower",
    "no gain",
    "timed out",
    "not tried",
]
"""The outcome of a candidate."""


def check_allowed(
    check: Callable[[str, OptionValue], None], name: str, value: OptionValue
) -> None:
    """Checks an option by the list of what a plan may name.

    Raises:
        PlanError: It may not.
    """
    try:
        check(name, value)
    except FlagError as error:
        raise PlanError(str(error)) from None


@dataclasses.dataclass(frozen=True, slots=True)
class PlanCandidate:
    """One set of levers that was compiled, or that could have been.

    Example:
        >>> tried = PlanCandidate(
        ...     "pipelined", (("xla_gpu_enable_pipelined_all_gather", True),),
        ...     "over memory", "needs 90 GB", None, None, 90_000_000_000, 4.0)
        >>> tried.status
        'over memory'
    """

    name: str
    levers: tuple[tuple[str, OptionValue | None], ...]
    status: Status
    reason: str
    step_seconds: float | None
    """With NCCL's own choices."""
    tuned_seconds: float | None
    """With the best settings for this candidate."""
    peak_bytes: int | None
    compile_seconds: float
    left: tuple[SiteRefusal, ...] = ()
    """Of a rewritten step: forms that were to be tried, and places cannot have."""

    def __post_init__(self) -> None:
        """Checks that this could have been tried."""
        for name, value in self.levers:
            if value is not None:
                check_allowed(check_tried, name, value)
            elif name not in (COSTS, ORDER):
                raise PlanError(f"candidate {self.name}: {name} has no value")


@dataclasses.dataclass(frozen=True, slots=True)
class MeasuredSteps:
    """Steps of a training job, with the plan and without it, in turns.

    Example:
        >>> MeasuredSteps(0.41, 0.35, 0.01, 12, True).kept
        True
    """

    baseline_seconds: float
    """Median of a step as the program was."""
    tuned_seconds: float
    """Median of a step with the plan."""
    noise_seconds: float
    """By how much the medians may differ though nothing else does."""
    steps: int
    """The number of measured steps of each."""
    kept: bool
    """True if the plan was faster by more than the noise, and so stayed."""


@dataclasses.dataclass(frozen=True, slots=True)
class Evidence:
    """Figures that a plan rests on; `measured` is the only time not predicted."""

    default: StepParts
    """With XLA's and NCCL's own choices."""
    tuned: StepParts
    """With the plan."""
    bound_seconds: float
    """The program as it is with all communication hidden, and free of charge. A plan
    that also takes work away may be shorter."""
    bound: str
    """The kind of bound: `computation alone` or `the busiest link alone`."""
    default_peak: int | None
    """Bytes of device memory at the fullest moment."""
    tuned_peak: int | None
    memory_limit: int | None
    candidates: tuple[PlanCandidate, ...]
    compiles: int
    seconds: float
    """Seconds that the decision took."""
    measured: MeasuredSteps | None = None
    """The measurement of a job that used the plan."""
    uncertainty: Uncertainty | None = None
    """Confidence of the predicted times; None in plans of formats 1 to 4."""

    @property
    def recovered(self) -> float | None:
        """The share of what could be won that the plan wins.

        None where nothing could be won; at most 1, also where the plan takes work away
        and so gets below the bound.
        """
        default = self.default.step_seconds
        if self.bound_seconds >= default:
            return None
        won = default - self.tuned.step_seconds
        return min(1.0, won / (default - self.bound_seconds))
