"""Where a step's time goes, in a few figures."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class StepParts:
    """Parts of a step on one device.

    The compute stream is busy, or stands still for a collective (or runs it itself), or
    for something else: `step_seconds` is the sum of `compute_seconds`,
    `exposed_seconds` and `waiting_seconds`.
    """

    step_seconds: float
    """From the first kernel to the end of everything."""
    compute_seconds: float
    """Kernels on the compute stream, slowed as they were."""
    contention_seconds: float
    """The part of `compute_seconds` by which collectives slowed kernels down."""
    communication_seconds: float
    """Collectives on any stream, hidden or not."""
    exposed_seconds: float
    """The compute stream stands still for collectives, or runs them itself."""
    waiting_seconds: float
    """The compute stream stands still for copies and kernels on other streams."""
