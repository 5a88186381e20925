"""Plans on their way from the first process to all others."""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
from collections.abc import Mapping

from lagom_jax.nccl_plugin import Rules, unpack
from lagom_jax.online.belief import StepCandidate
from lagom_jax.plan import MeasuredSteps, Plan, from_json


@dataclasses.dataclass(frozen=True)
class OfferedPlan:
    """A plan that all processes are to run, or to run for some steps."""

    document: str
    """The plan as JSON."""
    timed: StepCandidate
    """Its step by all models."""
    rules: str = ""
    """Its rules for NCCL's tuner plugin, as base64 text; empty where it has none."""

    @functools.cached_property
    def plan(self) -> Plan:
        """The plan itself.

        Raises:
            PlanError: It is none.
        """
        return from_json(self.document, "a plan of another process")

    def choice(self, collectives: str, how: str, parts: Mapping[str, str]) -> Choice:
        """The plan with what came of it here.

        Args:
            collectives: A hash of what its program communicates.
            how: Its origin, in words.
            parts: The key that it is kept under.
        """
        image = base64.b64decode(self.rules)
        rules = unpack(image, "what the first process said") if image else None
        return Choice(self.plan, rules, collectives, how, parts, self.timed)


@dataclasses.dataclass(frozen=True, slots=True)
class PlanOffer:
    """Plans that all processes build; the first is the one that was decided on."""

    plans: tuple[OfferedPlan, ...]
    how: str
    """The origin of the first, in words."""
    parts: Mapping[str, str]
    """The key that they are kept under."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """A plan that all processes of a step have built the program of."""

    plan: Plan
    rules: Rules | None
    """None where NCCL gets no rules."""
    collectives: str
    """A hash of what its program communicates."""
    how: str
    """Its origin, in words."""
    parts: Mapping[str, str]
    """The key that it is kept under."""
    timed: StepCandidate
    """Its step by all models."""

    @functools.cached_property
    def program(self) -> str:
        """The same for plans that ask the compiler for the same program."""
        return program_of(self.plan)

    def measured(self, found: MeasuredSteps) -> Choice:
        """The same with what steps have shown."""
        evidence = dataclasses.replace(self.plan.evidence, measured=found)
        plan = dataclasses.replace(self.plan, evidence=evidence)
        return dataclasses.replace(self, plan=plan)


def program_of(plan: Plan | None) -> str:
    """The same for plans that ask the compiler for the same program.

    Args:
        plan: A plan; None for the step as it is.
    """
    options = {} if plan is None else plan.compiler_options()
    text = repr((sorted(options.items()), None if plan is None else plan.order))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
