"""Plans and step times that a stand-in makes up: all that is done with them is real."""

import time

from hidden_machine import HiddenMachine, Weather

from lagom_jax.online.belief import StepCandidate
from lagom_jax.online.steps import StepTime
from lagom_jax.runtime import online_leader
from lagom_jax.runtime.planned_beside import PlannerBeside, TimedPlan
from tests.runtime.planned import OPTION, made

OTHER = "xla_gpu_enable_pipelined_all_gather"
"""Another option that the CPU takes and ignores."""
NAMES = ("as it was", "the plan", "another plan")
PREDICTED = (0.100, 0.090, 0.092)
# Models agree on the plan, and leave open what the other one takes.
OPEN = (0.0, 0.002, 0.03)

CALM = Weather(noise=0.005, drift=0.0, lags=0.0, outliers=0.0)


def plan_beside(planner, seconds=0.0):
    """What `PlannerBeside.plan` does, without a compiler."""
    time.sleep(seconds)
    plans = [made(planner, options=()), made(planner), made(planner, options=(OTHER,))]
    by_model = [
        tuple(one * (1 + share * (n % 7 - 3)) for n in range(20))
        for one, share in zip(PREDICTED, OPEN, strict=True)
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
        self.machine, self.times, self.steps = machine, [], 0

    def started(self, candidate, at, result, *, counts):
        self.steps += 1
        self.times.append(StepTime(candidate, self.machine.step(candidate), counts))

    def taken(self):
        found, self.times = tuple(self.times), []
        return found

    def stop(self):
        self.times = []


def hidden(monkeypatch, seconds, weather=CALM):
    """Lets steps take what a machine says, by candidate."""
    clock = HiddenClock(HiddenMachine(seconds, weather, "0"))
    monkeypatch.setattr(online_leader, "StepClock", lambda: clock)
    return clock


__all__ = ["NAMES", "OPTION", "OTHER", "Beside", "hidden", "plan_beside"]
