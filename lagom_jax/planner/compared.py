"""Reports of a step as it is and with a plan, of programs that are compiled already."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from lagom_jax.api import report_scheduled
from lagom_jax.measurements import Calibration
from lagom_jax.plan import Plan
from lagom_jax.plan.evidence import COSTS
from lagom_jax.planner.make import Planner
from lagom_jax.report import Report
from xla_flags import OptionValue


def compared(
    planner: Planner,
    plan: Plan,
    calibration: Calibration | str | Path | None = None,
) -> tuple[Report, Report]:
    """Reports of the step as it is, and with a plan.

    Args:
        planner: The one that made the plan, and has compiled both programs.
        plan: The plan.
        calibration: As the planner was given.
    """
    # Caps on NCCL's channels change no program.
    options: dict[str, OptionValue] = {
        lever.name: lever.value
        for lever in plan.levers
        if lever.accepted and lever.value is not None
    }
    if plan.costs is not None:
        options[COSTS] = plan.costs.encode()
    before, _ = planner.compile({})
    after, _ = planner.compile(options, plan.order)
    after = dataclasses.replace(after, plan=plan)
    return (
        report_scheduled(before, calibration=calibration),
        report_scheduled(after, calibration=calibration),
    )
