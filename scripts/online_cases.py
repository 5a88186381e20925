"""The steps of bench_online, their candidates, and hidden machines that run them.

A hidden machine is the replay under constants of its own: drawn as those of the
ensemble are, with another seed, or off by 2 to 4 times, which no model of the ensemble
allows for. It times whatever it is given, and writes profiles as GPUs do. AutoCCL and
the paper's descent are run on it with its own times, for so many rounds. Everything is
predicted.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
import random
import sys
import tempfile
from pathlib import Path

from planned_cases import CASES, planner_of, versions_of
from written_profile import profile_of

from lagom_jax.cluster import Cluster
from lagom_jax.cost.constants import Constants
from lagom_jax.cost.drawn import drawn
from lagom_jax.cost.draws import Draws
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.replay import replay
from lagom_jax.measurements import read_profile
from lagom_jax.measurements.profiled import calibration_of_run
from lagom_jax.online.belief import Purchase, StepCandidate
from lagom_jax.planner import Budget, Request
from lagom_jax.planner.alternatives import chosen
from lagom_jax.planner.decide import TimedWay, Timing, decide
from lagom_jax.planner.run import Finished
from lagom_jax.planner.settings_around import settings_around
from lagom_jax.program.program import Program
from lagom_jax.settings.autoccl import AutoCcl
from lagom_jax.settings.lagom import Lagom
from lagom_jax.settings.policy import Found
from lagom_jax.settings.space import Choice
from lagom_jax.settings.stage import Score, Stage

LAYERS = {"fsdp": 4, "fsdp, batch 2": 4, "fsdp, unrolled": 3}
"""Of the models, where they are not two."""
EIGHT = (
    *("fsdp", "fsdp, batch 2", "fsdp, unrolled", "tp"),
    *("tp-sp", "moe, small", "moe", "fsdp, A40"),
)
STEPS = {
    name: (model, cluster, {**asked, "layers": LAYERS.get(name, 2)})
    for name, (model, cluster, asked) in CASES.items()
}
SEED, WRONG = 1, (2.0, 4.0)
PROFILE_NOISE = 0.01


def wrong(constants: Constants, seed: str) -> Constants:
    """Constants of which each kind is off by 2 to 4 times, up or down."""
    chance = random.Random(seed)

    def off() -> float:
        return chance.choice((-1, 1)) * math.log(chance.uniform(*WRONG))

    matmuls, collectives, network = off(), off(), off()
    kernels, known = constants.kernels, constants.network
    return dataclasses.replace(
        constants,
        kernels=dataclasses.replace(
            kernels,
            matmuls={
                name: dataclasses.replace(
                    one,
                    correction=dataclasses.replace(
                        one.correction,
                        log_factors=one.correction.log_factors + matmuls,
                    ),
                )
                for name, one in kernels.matmuls.items()
            },
        ),
        surfaces=dataclasses.replace(
            constants.surfaces,
            by_kind={
                kind: dataclasses.replace(
                    one,
                    factors={
                        name: table + collectives for name, table in one.factors.items()
                    },
                )
                for kind, one in constants.surfaces.by_kind.items()
            },
        ),
        network=dataclasses.replace(
            known,
            efficiency=known.efficiency * math.exp(-network),
            crossing_seconds=known.crossing_seconds * math.exp(network),
        ),
    )


@dataclasses.dataclass(eq=False)
class PlannedCase:
    """A step that was planned for once, and what a job could run of it."""

    name: str
    versions: str
    compiles: int
    cluster: Cluster
    finished: Finished
    ways: list[TimedWay]
    """All that any job was offered; the first are what a job begins with."""
    candidates: list[StepCandidate]
    """The same, as a job knows them."""
    begins_with: int
    _known: dict[tuple[int, bool], list[int]] = dataclasses.field(
        default_factory=dict[tuple[int, bool], list[int]]
    )

    @classmethod
    def of(
        cls, name: str, versions: str, compiles: int, cluster: Cluster, done: Finished
    ) -> PlannedCase:
        """Takes what a planner has ended with."""
        named = chosen(done)
        candidates = [
            StepCandidate(label, way.scored.seconds, way.scored.by_model)
            for label, way in named
        ]
        ways = [way for _, way in named]
        found = (name, versions, compiles, cluster, done, ways, candidates)
        return cls(*found, len(ways))

    def around(self, base: int, *, start: bool) -> list[int]:
        """Candidates with settings around those of one."""
        key = base, start
        if key not in self._known:
            new: list[int] = []
            for one in settings_around(self.finished, self.ways[base], start=start):
                bought = Purchase(base, one.saved_seconds, one.added_seconds)
                scored = one.way.scored
                self.candidates.append(
                    StepCandidate(one.name, scored.seconds, scored.by_model, bought)
                )
                self.ways.append(one.way)
                new.append(len(self.ways) - 1)
            self._known[key] = new
        return self._known[key]

    def program_of(self, candidate: int) -> int:
        """The number of its program."""
        return self.ways[candidate].trial.number


def planned(name: str, compiles: int) -> PlannedCase:
    """A case, planned with so many compiles."""
    planner = planner_of(name, steps=STEPS)
    plan = planner.plan(
        Request(
            budget=Budget(compiles=compiles),
            progress=lambda what: say(name, what),
        )
    )
    assert planner.finished is not None
    return PlannedCase.of(
        name, versions_of(plan), compiles, planner.cluster, planner.finished
    )


def say(name: str, what: str) -> None:
    print(f"{name}: {what}", file=sys.stderr, flush=True)


def hidden_constants(case: PlannedCase, machines: int) -> list[Constants]:
    """Those of hidden machines, drawn as those of the ensemble are."""
    own = case.finished.judge.model.constants
    return [*drawn(own, case.cluster.gpu, Draws(machines, SEED))]


class Truth:
    """The times of steps under the constants of a hidden machine."""

    def __init__(self, case: PlannedCase, constants: Constants) -> None:
        settings = case.finished.judge.model.settings
        self._model = CostModel(case.cluster, constants, settings)
        self._stages: dict[tuple[int, str], Stage] = {}
        self._known: dict[int, float] = {}

    def stage(self, way: TimedWay) -> Stage:
        """A candidate's program on this machine."""
        key = way.trial.number, way.view.policy
        if key not in self._stages:
            model = self._model.with_policy(way.view.policy)
            self._stages[key] = way.view.stage.under(model)
        return self._stages[key]

    def seconds(self, way: TimedWay) -> float:
        """A candidate's step."""
        if id(way) not in self._known:
            score = self.stage(way).score(way.view.found.choice)
            self._known[id(way)] = score.step_seconds
        return self._known[id(way)]

    def knowing(self, finished: Finished) -> float:
        """The step of a planner that knows this machine, with settings of its own."""
        programs = {one.trial.number: one for one in finished.ways}
        found = [self.seconds(way) for way in finished.ways]
        for way in programs.values():
            stage = self.stage(way)
            found.append(stage.score(Lagom().choose(stage).choice).step_seconds)
        return min(found)

    def profile_of(self, program: Program, seed: str) -> bytes:
        """A profile of a few steps of a program, as GPUs write it."""
        timeline = replay(program, self._model, self._model.contention())
        return profile_of(program, timeline, self._model, PROFILE_NOISE, seed)


def calibrated(case: PlannedCase, truth: Truth, seed: str) -> PlannedCase:
    """The case as a job has it whose first steps were profiled on a machine.

    What was compiled is looked at again with the model that the profile has corrected;
    a job plans with it from the beginning, and may compile other programs.
    """
    view = case.finished.ways[0].view
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "host.xplane.pb"
        file.write_bytes(truth.profile_of(view.program, seed))
        step = read_profile(file)
    model = case.finished.judge.model
    calibration = calibration_of_run(view.program, step, case.cluster, model)
    judge = case.finished.judge.calibrated(calibration)
    trials = [
        dataclasses.replace(one, view=judge.look(one.view.scheduled))
        if one.view is not None
        else one
        for one in case.finished.trials
    ]
    decision = decide(trials, Timing(judge))
    done = dataclasses.replace(
        case.finished,
        trials=tuple(trials),
        taken=decision.trial,
        judge=judge,
        ways=decision.ways,
    )
    return PlannedCase.of(case.name, case.versions, case.compiles, case.cluster, done)


class EnoughError(Exception):
    """All the steps that a policy may spend are spent."""


def paper_within(stage: Stage, most: int) -> tuple[float, int]:
    """The best step that the paper's descent has seen after so many, and how many."""
    seen: dict[Choice, float] = {}
    counted = copy.copy(_alone(stage))

    def score(choice: Choice, scenes: object = None) -> Score:
        if choice not in seen:
            if len(seen) >= most:
                raise EnoughError
            seen[choice] = stage.score(choice).step_seconds
        return stage.score(choice)

    vars(counted)["score"] = score
    with contextlib.suppress(EnoughError):
        Lagom(look_around=False, jointly=False).choose(counted)
    return min(seen.values()), len(seen)


def autoccl_within(stage: Stage, most: int) -> tuple[float, int]:
    """The step after AutoCCL's rounds, and how many it made.

    Each tries one setting of every group.
    """
    samples = max(1, round(most * AutoCcl().samples / 70))
    policy = AutoCcl(samples=samples, budget=max(1, most - samples - 1))
    found: Found = policy.choose(_alone(stage))
    rounds = math.ceil(found.evaluations / max(1, len(stage.space.groups)))
    return stage.score(found.choice).step_seconds, rounds


def _alone(stage: Stage) -> Stage:
    """The stage without coarser controls, which neither of them knows."""
    return stage.with_space(dataclasses.replace(stage.space, coarser=None))
