"""What the jobs train: small steps whose collectives differ in kind."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import lagom_models
from lagom_jax.runtime import guard
from lagom_models import TrainingStep

_AFTER_THE_GUARD: Final = 4
STEPS: Final = len(guard.schedule()) + _AFTER_THE_GUARD
"""How many steps a job trains: as many as the guard measures, and some more."""


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A step, and how many processes train it.

    Example:
        >>> Case("fsdp", 2, True, {"tiny": True, "layers": 2}).name
        'FSDP of 2'
    """

    parallelism: str
    processes: int
    deterministic: bool
    """Whether a plan must leave alone what may change the rounding of sums."""
    size: dict[str, Any]
    """Of the model, as `lagom_models.build` takes it."""

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.parallelism.upper()} of {self.processes}"

    def build(self) -> TrainingStep:
        """The step, for devices that its processes have one each."""
        along = {} if self.parallelism == "fsdp" else {"model_axis": self.processes}
        return lagom_models.build(
            "phi-2",
            devices=self.processes,
            parallelism=self.parallelism,
            **along,
            **self.size,
        )


def cases(dry: bool) -> tuple[Case, ...]:
    """The most important one first.

    Args:
        dry: Sizes for a CPU instead of a GPU.
    """
    if dry:
        # Compilers take nearly all of the time, so there is one case, and the least of
        # which a plan can still change anything.
        return (
            Case(
                "fsdp", 2, True, {"tiny": True, "layers": 2, "batch": 1, "sequence": 16}
            ),
        )
    real = {"layers": 4, "batch": 2, "sequence": 1024}
    return (
        Case("fsdp", 2, True, real),
        Case("tp", 2, False, real),
        Case("fsdp", 4, False, real),
    )
