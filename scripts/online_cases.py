"""Candidates of small steps, timed under hidden machines: what bench_online runs on.

    python scripts/online_cases.py [--case NAME] [--compiles N] [--machines N] OUT

Each step is planned once. Its plan, the step as it is and the next best are timed under
the models that the plan was decided by, under as many other draws of the ensemble (the
hidden machines), and under machines whose constants are off by 2 to 4 times, which no
model of the ensemble allows for. Under some machines the settings that AutoCCL and the
paper's descent find with that machine's own times stand beside them, and what a planner
that knew the machine would have chosen. Everything is predicted.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from planned_cases import CASES, planner_of, versions_of

from lagom_jax.cluster import Cluster
from lagom_jax.cost.constants import Constants
from lagom_jax.cost.drawn import drawn
from lagom_jax.cost.draws import Draws
from lagom_jax.cost.model import CostModel
from lagom_jax.planner import Budget, Request
from lagom_jax.planner.alternatives import chosen
from lagom_jax.planner.decide import TimedWay
from lagom_jax.planner.run import Finished
from lagom_jax.settings.autoccl import AutoCcl
from lagom_jax.settings.lagom import Lagom
from lagom_jax.settings.stage import Stage

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
SOME = 8
"""Machines on which whole policies are run."""


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


def on_machine(
    ways: Sequence[TimedWay], constants: Constants, finished: Finished, cluster: Cluster
) -> list[float]:
    """Each candidate's step on a machine."""
    model = CostModel(cluster, constants, finished.judge.model.settings)
    stages: dict[tuple[int, str], Stage] = {}
    found: list[float] = []
    for way in ways:
        key = id(way.view.stage), way.view.policy
        if key not in stages:
            stages[key] = way.view.stage.under(model.with_policy(way.view.policy))
        found.append(stages[key].score(way.view.found.choice).step_seconds)
    return found


def policies(finished: Finished, cluster: Cluster, constants: Constants) -> Any:
    """Steps after AutoCCL and the paper's descent, and of a planner that knows."""
    model = CostModel(cluster, constants, finished.judge.model.settings)
    first = finished.ways[0].view.stage.under(model)
    found: dict[str, Any] = {}
    for name, policy in (
        ("autoccl", AutoCcl()),
        ("paper", Lagom(look_around=False, jointly=False)),
    ):
        result = policy.choose(first)
        seconds = first.score(result.choice).step_seconds
        found[name] = (seconds, result.evaluations)
    knowing: list[float] = []
    for way in {one.trial.number: one for one in finished.ways}.values():
        stage = way.view.stage.under(model.with_policy(way.view.policy))
        knowing.append(stage.score(Lagom().choose(stage).choice).step_seconds)
    found["knowing"] = min(knowing)
    return found


def case_of(name: str, compiles: int, machines: int) -> dict[str, Any]:
    planner = planner_of(name, steps=STEPS)

    def say(what: str) -> None:
        print(f"{name}: {what}", file=sys.stderr, flush=True)

    plan = planner.plan(Request(budget=Budget(compiles=compiles), progress=say))
    finished, cluster = planner.finished, planner.cluster
    assert finished is not None
    ways = chosen(finished)
    constants = finished.judge.model.constants
    hidden = drawn(constants, cluster.gpu, Draws(machines, SEED))
    say("timing on hidden machines")
    off = [wrong(one, f"{SEED} {n}") for n, one in enumerate(hidden[:SOME])]
    return {
        "case": name,
        "step": STEPS[name],
        "versions": versions_of(plan),
        "compiles": compiles,
        "names": [label for label, _ in ways],
        "seconds": [way.scored.seconds for _, way in ways],
        "by_model": [list(way.scored.by_model) for _, way in ways],
        "hidden": [
            on_machine([way for _, way in ways], one, finished, cluster)
            for one in hidden
        ],
        "wrong": [
            on_machine([way for _, way in ways], one, finished, cluster) for one in off
        ],
        "policies": [policies(finished, cluster, one) for one in hidden[:SOME]],
        "policies_wrong": [policies(finished, cluster, one) for one in off],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Candidates for bench_online.")
    parser.add_argument("--case", action="append", choices=tuple(STEPS))
    parser.add_argument("--compiles", type=int, default=4)
    parser.add_argument("--machines", type=int, default=200)
    parser.add_argument("out", type=Path, metavar="OUT")
    asked = parser.parse_args()
    kept: list[dict[str, Any]] = []
    if asked.out.exists():
        kept = json.loads(asked.out.read_text())
    for name in asked.case or EIGHT:
        found = case_of(name, asked.compiles, asked.machines)
        kept = [*(one for one in kept if one["case"] != name), found]
        text = json.dumps(kept, indent=None)
        asked.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
