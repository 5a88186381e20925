"""The exceptions that lagom_jax raises on purpose, and findings that stop nobody."""

from __future__ import annotations

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One thing seen, its meaning, and what to do about it."""

    severity: Literal["ok", "warning", "error"]
    text: str
    remedy: str = ""
    """A command or a change to make; empty where nothing is wrong."""


class LagomError(Exception):
    """Something the user can put right; the message says what and how.

    The command line prints the message alone and exits with `exit_code`; every
    other exception is a defect of lagom_jax and keeps its traceback.

    Example:
        >>> raise LagomError("no such cluster: 'h100'")
        Traceback (most recent call last):
        ...
        lagom_jax.errors.LagomError: no such cluster: 'h100'
    """

    exit_code = 2


class ClusterError(LagomError, ValueError):
    """An unknown or impossible cluster."""


class ClusterTypeError(ClusterError, TypeError):
    """A value that is neither a cluster nor the name of one."""


class ToolchainError(LagomError):
    """XLA's GPU compiler is missing, or its parts do not belong together."""

    exit_code = 3


class CompileError(LagomError):
    """XLA's GPU compiler refused the program, or its process died."""

    exit_code = 4


class CompileTimeoutError(CompileError):
    """The compiler took longer than it was given."""


class StepError(CompileError):
    """The step, or an option of it, has to change before it can be compiled."""

    exit_code = 2


class StepTypeError(StepError, TypeError):
    """A step, or a compiler option, of a type that cannot be used."""


class HloError(LagomError):
    """A file or a text that is not the scheduled HLO module that is needed."""


class MeasurementError(LagomError):
    """A profile, a table of measurements or a calibration that cannot be used."""


class KernelTableError(LagomError):
    """A table of stated kernels that cannot be used."""


class PlanError(LagomError):
    """A plan that contradicts itself, or a file that is none."""


class DecomposeError(LagomError, ValueError):
    """Sizes, axes or examples that cannot be cut as asked."""


class TunerError(LagomError):
    """Rules that NCCL's tuner plugin cannot have, or a file that holds none."""


class RegionError(LagomError):
    """A strategy for regions, or a link between them, that cannot be as asked."""


class RefusedError(LagomError):
    """All processes of a step agree that nothing is changed; the message says why."""


class InDoubtError(LagomError):
    """Processes of one job may be about to run different programs: stop this one."""
