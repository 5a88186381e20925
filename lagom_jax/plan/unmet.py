"""Needs of a plan that a process does not meet."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Protocol

from lagom_jax.cluster import Cluster
from lagom_jax.errors import ClusterError, Finding
from lagom_jax.plan.plan import Plan
from lagom_jax.plan.process_needs import MEMORY_FRACTION, POOL_FRACTION, ProcessVariable
from lagom_jax.units import in_bytes, in_seconds


class ProcessFacts(Protocol):
    """Facts about a process that is to use a plan."""

    @property
    def variables(self) -> Mapping[str, str]:
        """Its environment."""
        ...

    @property
    def nccl(self) -> str:
        """The version of NCCL that it finds; empty where that is not known."""
        ...

    @property
    def cuda_driver(self) -> str:
        """The CUDA that its driver supports, likewise."""
        ...


def unmet(plan: Plan, process: ProcessFacts | None) -> Iterator[Finding]:
    """Findings against a plan in a process.

    Args:
        plan: The plan.
        process: The process; None where nothing is known of it.
    """
    if process is None:
        return
    for variable in plan.variables:
        if process.variables.get(variable.name) != variable.value:
            yield _not_set(plan, variable)
    needs = plan.needs
    for what, least, here in (
        ("NCCL", needs.nccl, process.nccl),
        ("the driver's CUDA", needs.cuda_driver, process.cuda_driver),
    ):
        if least and here and _numbers(here) < _numbers(least):
            yield Finding(
                "error",
                f"the plan needs {what} {least}, here it is {here}: its collectives "
                "would run on rings, in memory made for other transports",
                f"install {what} {least} or newer, or make the plan again without "
                "the lever transports",
            )
    yield from _memory(plan, process)


def _not_set(plan: Plan, variable: ProcessVariable) -> Finding:
    tuned = plan.evidence.tuned.step_seconds
    without = variable.step_without
    text = f"{variable.name} is not {variable.value} here: {variable.why}"
    remedy = (
        f"export {variable.name}={variable.value} before the first communicator, or "
        "call lagom_jax.init with the plan"
    )
    if without is None:
        return Finding("error", text, remedy)
    text += f"; predicted {in_seconds(without)} a step in place of {in_seconds(tuned)}"
    return Finding("warning", text, remedy)


def _memory(plan: Plan, process: ProcessFacts) -> Iterator[Finding]:
    outside = plan.needs.bytes_outside_pool
    if not outside or any(one.name == MEMORY_FRACTION for one in plan.variables):
        # A variable that is missing is a finding of its own.
        return
    try:
        memory = Cluster.parse(plan.holds_for.cluster).gpu.memory_bytes
    except ClusterError:
        return
    stated = process.variables.get(MEMORY_FRACTION, "")
    try:
        fraction = float(stated) if stated else POOL_FRACTION
    except ValueError:
        return
    if fraction * memory + outside > memory:
        least = int(100 * (1 - outside / memory)) / 100
        yield Finding(
            "error",
            f"{MEMORY_FRACTION} is {fraction:g}, which leaves no room for "
            f"{in_bytes(outside)} of symmetric memory beside it",
            f"export {MEMORY_FRACTION}={least:.2f} or less",
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"[0-9]+", version))
