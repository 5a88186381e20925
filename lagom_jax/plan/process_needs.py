"""Needs of a plan: of a process and of what is installed for it."""

from __future__ import annotations

import dataclasses
import re
from typing import Final

from lagom_jax.errors import PlanError
from lagom_jax.plan.transport import CTA_POLICY

MEMORY_FRACTION: Final = "XLA_PYTHON_CLIENT_MEM_FRACTION"
PROCESS_VARIABLES: Final = {
    CTA_POLICY: re.compile("[012]"),
    MEMORY_FRACTION: re.compile(r"0?\.[0-9]{1,3}"),
}
"""Variables that a plan may set, and what they may be."""
POOL_FRACTION: Final = 0.75
"""The part of a GPU's memory that jax sets aside where nobody says otherwise."""


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessVariable:
    """A variable of NCCL or jax that a process must have before its first communicator.

    Example:
        >>> ProcessVariable("NCCL_ALGO", "ring", "why", None)
        Traceback (most recent call last):
        ...
        lagom_jax.errors.PlanError: NCCL_ALGO is not a variable that a plan may set
    """

    name: str
    value: str
    why: str
    """In words."""
    step_without: float | None
    """Predicted seconds of a step where it is not set; None where that cannot run."""

    def __post_init__(self) -> None:
        """Checks that it is one of those that plans come up with."""
        if self.name not in PROCESS_VARIABLES:
            raise PlanError(f"{self.name} is not a variable that a plan may set")
        if not PROCESS_VARIABLES[self.name].fullmatch(self.value):
            raise PlanError(f"{self.name}={self.value!r}: not a value for a plan")


@dataclasses.dataclass(frozen=True, slots=True)
class Needs:
    """Conditions of the installation and the process that a plan was made under.

    Example:
        >>> bool(Needs()), bool(Needs(nccl="2.29.0"))
        (False, True)
    """

    nccl: str = ""
    """The least version of NCCL; empty where any will do."""
    cuda_driver: str = ""
    """The least version of CUDA that the driver supports, likewise."""
    bytes_outside_pool: int = 0
    """Symmetric memory on each device, beside what jax sets aside."""

    def __bool__(self) -> bool:
        """True if there are any."""
        return self != Needs()


NOTHING_NEEDED: Final = Needs()
