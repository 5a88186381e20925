"""Plans and step times that a stand-in makes up: all that is done with them is real."""

import dataclasses
import time

from hidden_machine import HiddenMachine, Weather

from lagom_jax.online.belief import Purchase, StepCandidate
from lagom_jax.online.steps import StepTime
from lagom_jax.plan import Setting, to_json
from lagom_jax.plan.plan import SiteSetting
from lagom_jax.runtime import online
from lagom_jax.runtime.cache import digest_of
from lagom_jax.runtime.offer import OfferedPlan
from lagom_jax.runtime.planned_beside import PlannerBeside
from tests.runtime.planned import OPTION, made

OTHER = "xla_gpu_enable_latency_hiding_scheduler"
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
        OfferedPlan(to_json(plan), StepCandidate(name, one, models))
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


ROUNDS = 2
_RING = Setting("ring", "simple", 16, 544, 524288)


def settings_beside(planner, plan):
    """What `PlannerBeside.around` does: a setting a round, for so many rounds."""
    known = next(
        one
        for one in planner.timed
        if plan is None or digest_of(one.plan) == digest_of(plan)
    )
    number = 1 + sum(bool(one.plan.settings) for one in planner.timed)
    if number > ROUNDS:
        return ()
    told = SiteSetting(
        *("all-gather", 1 << 20, 8, 1, (), (f"site.{number}",)),
        *(_RING, dataclasses.replace(_RING, channels=2 * number), "why"),
    )
    before = known.timed.seconds
    timed = StepCandidate(
        f"setting {number}",
        0.98 * before,
        tuple(
            0.98 * one * (1 + 0.002 * n) for n, one in enumerate(known.timed.by_model)
        ),
        Purchase(0, 0.03 * before, 0.01 * before),
    )
    plan = dataclasses.replace(known.plan, settings=(told,))
    found = OfferedPlan(to_json(plan), timed)
    planner.timed = (*planner.timed, found)
    return (found,)


class SettingsBeside:
    """Takes the place of `PlannerBeside.around`, and keeps what it was asked."""

    def __init__(self, monkeypatch):
        self.asked = []
        keeps = self

        def around(planner, plan):
            keeps.asked.append(plan)
            return settings_beside(planner, plan)

        monkeypatch.setattr(PlannerBeside, "around", around)


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
    monkeypatch.setattr(online, "StepClock", lambda: clock)
    return clock


__all__ = ["NAMES", "OPTION", "OTHER", "Beside", "hidden", "plan_beside"]
