"""Plans that nobody had to compile for: what the wrapper does with a plan is real."""

import dataclasses

from lagom_jax.compile import Toolchain
from lagom_jax.plan import Evidence, HoldsFor, Lever, Plan, PlanControls, StepParts
from lagom_jax.planner import Planner

OPTION = "xla_gpu_enable_while_loop_double_buffering"


def made(planner: Planner, *, options=(OPTION,), measured=None, peak=1 << 30) -> Plan:
    """A plan for a planner's step, with options that the CPU takes and ignores."""
    parts = StepParts(0.1, 0.08, 0.0, 0.05, 0.02, 0.0)
    return Plan(
        holds_for=HoldsFor(
            program="step",
            fingerprint=planner.fingerprint,
            schedule="",
            cluster=planner.cluster.name,
            devices=planner.cluster.devices,
            versions=tuple(sorted(Toolchain.probe().versions.items())),
            pinned=planner.pinned,
        ),
        levers=tuple(
            Lever(name, True, "why", True, "something", -0.01, 0, True)
            for name in options
        ),
        costs=None,
        order=None,
        settings=(),
        controls=PlanControls("caps", "nothing", "made by hand"),
        evidence=Evidence(
            default=parts,
            tuned=dataclasses.replace(parts, step_seconds=0.09),
            bound_seconds=0.08,
            bound="computation alone",
            default_peak=peak,
            tuned_peak=peak,
            memory_limit=80 << 30,
            candidates=(),
            compiles=2,
            seconds=1.0,
            measured=measured,
        ),
        pricing="made by hand",
    )


class Plans:
    """Takes the place of `Planner.plan`, and counts."""

    def __init__(self, monkeypatch, make=made):
        self.made = 0
        self.make = make
        count = self

        def plan(planner, request):
            count.made += 1
            return count.make(planner)

        monkeypatch.setattr(Planner, "plan", plan)
