"""Plans and step times that a stand-in makes up: all that is done with them is real."""

import time

from lagom_jax.online.belief import StepCandidate
from lagom_jax.runtime import online
from lagom_jax.runtime.planned_beside import PlannerBeside, TimedPlan
from tests.online.machine import HiddenMachine
from tests.runtime.planned import OPTION, made

OTHER = "xla_gpu_enable_pipelined_all_gather"
"""Another option that the CPU takes and ignores."""
NAMES = ("as it was", "the plan", "another plan")
PREDICTED = (0.100, 0.090, 0.092)


def plan_beside(planner, seconds=0.0):
    """What `PlannerBeside.plan` does, without a compiler."""
    time.sleep(seconds)
    plans = [made(planner, options=()), made(planner), made(planner, options=(OTHER,))]
    by_model = [
        tuple(one * (1 + 0.002 * (n % 7 - 3) * place) for n in range(20))
        for place, one in enumerate(PREDICTED)
    ]
    planner.timed = tuple(
        TimedPlan(plan, StepCandidate(name, one, models))
        for plan, name, one, models in zip(
            plans, NAMES, PREDICTED, by_model, strict=True
        )
    )
    return plans[1]


class Beside:
    """Takes the place of `PlannerBeside.plan`, and counts."""

    def __init__(self, monkeypatch, seconds=0.0):
        self.made = 0
        count = self

        def plan(planner, request=None):
            count.made += 1
            return plan_beside(planner, seconds)

        monkeypatch.setattr(PlannerBeside, "plan", plan)


class HiddenClock:
    """A clock of steps that reads a hidden machine instead of the time."""

    def __init__(self, machine):
        self.machine, self.times = machine, []

    def started(self, candidate, at, result, *, counts):
        self.times.append(self.machine.step(candidate))

    def taken(self):
        found, self.times = tuple(self.times), []
        return found

    def stop(self):
        self.times = []


def hidden(monkeypatch, seconds, seed=0, **noise):
    """Lets steps take what a machine says, by candidate."""
    machine = HiddenMachine(seconds, seed, **noise)
    monkeypatch.setattr(online, "StepClock", lambda: HiddenClock(machine))
    return machine


__all__ = ["NAMES", "OPTION", "OTHER", "Beside", "hidden", "plan_beside"]
