"""Hidden machines: what candidates of a plan take under models that nobody knows.

    python scripts/online_machines.py [--case NAME] --json OUT

Each case is planned once; its candidates are timed under the models that planning
knows, and under others: drawn from the same ensemble with another seed, and the likeliest
with the times of its collectives wrong by 2 to 4 times, kind by kind. AutoCCL's rounds
and those of the Lagom paper are run on the same machines, one step for each look, with
the same noise. `scripts/bench_online.py` reads what is written here.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from bench_regret import ALL
from planned_cases import planner_of

from lagom_jax.cost.ensemble import Ensemble
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.prices import Price, Prices
from lagom_jax.cost.timeline import Totals
from lagom_jax.hlo.collective import Collective
from lagom_jax.planner import Budget
from lagom_jax.planner.alternatives import worth_measuring
from lagom_jax.planner.decide import TimedWay
from lagom_jax.planner.request import Request
from lagom_jax.plan.setting import REDUCING
from lagom_jax.program.program import Kernel
from lagom_jax.settings.autoccl import AutoCcl
from lagom_jax.settings.lagom import Lagom
from lagom_jax.settings.policy import Policy
from lagom_jax.settings.space import Choice
from lagom_jax.settings.stage import Score, Stage

MACHINES, SEED = 200, 1
ROUNDS_ON = 10
"""Machines of each sort on which the rounds of others are run."""
BUDGETS = (10, 20, 100)
NOISE = 0.01
_WRONG = (2.0, 4.0)
KINDS = (
    *REDUCING,
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
    "send",
)


@dataclasses.dataclass(frozen=True)
class WrongPrices:
    """Prices that are wrong by a factor for each kind of collective."""

    base: Prices
    factors: dict[str, float]

    def kernel(self, kernel: Kernel) -> Price:
        return self.base.kernel(kernel)

    def collective(self, collective: Collective) -> Price:
        price = self.base.collective(collective)
        factor = self.factors[collective.kind]
        return dataclasses.replace(price, seconds=factor * price.seconds)


class SpentError(Exception):
    """No steps are left."""


class MeasuredStage:
    """A stage whose steps are measured: noisy, and each look costs one."""

    def __init__(self, known: Stage, hidden: Stage, budget: int, seed: int) -> None:
        self._known, self._hidden, self._left = known, hidden, budget
        self._dice = np.random.default_rng(seed)
        self._seen: dict[Choice, float] = {}
        self.found: dict[Choice, Score] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._known, name)

    def score(self, choice: Choice, scenes: Sequence[int] | None = None) -> Score:
        if choice not in self._seen:
            if not self._left:
                raise SpentError
            self._left -= 1
            self._seen[choice] = math.exp(NOISE * self._dice.normal())
            self.found[choice] = self._hidden.score(choice)
        noise, score = self._seen[choice], self._hidden.score(choice, scenes)
        totals = Totals()
        totals.add(score.totals, noise)
        own = {group: noise * seconds for group, seconds in score.own_seconds.items()}
        return Score(totals, own)


def rounds(
    policy: Policy, known: Stage, hidden: Stage, budget: int, seed: int
) -> float:
    """Seconds of a step with what a policy has found by so many measured steps."""
    stage: Any = MeasuredStage(known, hidden, budget, seed)
    try:
        choice = policy.choose(stage).choice
    except SpentError:
        if policy.name == "lagom":
            choice = min(stage.found, key=lambda c: stage.score(c).step_seconds)
        else:
            choice = list(known.untouched)
            for group in range(len(choice)):
                tried = [c for c in stage.found if any(c)] or [known.untouched]
                own = {c: stage.score(c).own_seconds.get(group, 0.0) for c in tried}
                choice[group] = min(tried, key=own.__getitem__)[group]
    return hidden.score(tuple(choice)).step_seconds


def case_of(name: str, compiles: int) -> dict[str, Any]:
    planner = planner_of(name, steps=ALL)
    planner.plan(
        Request(
            budget=Budget(compiles=compiles),
            progress=lambda line: print(f"{name}: {line}", file=sys.stderr, flush=True),
        )
    )
    finished = planner.finished
    assert finished is not None
    ways = worth_measuring(finished)
    taken = next(
        number
        for number, way in enumerate(ways)
        if way.trial.number == finished.taken.number
        and finished.taken.view is not None
        and way.view.found.choice == finished.taken.view.found.choice
    )
    found: dict[str, Any] = {
        "case": name,
        "names": [f"{w.trial.label} {w.trial.asked.name}" for w in ways],
        "seconds": [way.scored.seconds for way in ways],
        "by_model": [way.scored.by_model for way in ways],
        "taken": taken,
    }
    judge = finished.judge
    drawn = Ensemble.around(judge.model, MACHINES, SEED).members
    dice = np.random.default_rng(SEED)
    for sort in ("right", "wrong"):
        times: list[list[float]] = []
        others: dict[str, list[list[float]]] = {"autoccl": [], "lagom": []}
        begun = time.monotonic()
        for number, model in enumerate(drawn):
            factors = factors_of(sort, number)
            hidden = [hidden_stage(way, model, factors) for way in ways]
            scored = zip(hidden, ways, strict=True)
            times.append([s.score(w.view.found.choice).step_seconds for s, w in scored])
            if number < ROUNDS_ON:
                for policy in (AutoCcl(), Lagom(look_around=False)):
                    known = ways[0].view.usual
                    others[policy.name].append(
                        [rounds(policy, known, hidden[0], n, number) for n in BUDGETS]
                    )
        print(f"{name}: {sort}, {time.monotonic() - begun:.0f} s", file=sys.stderr)
        found[sort] = {"machines": times, **others}
    return found


def factors_of(sort: str, number: int) -> dict[str, float]:
    """The factors by which a machine's collectives differ from its model's."""
    if sort == "right":
        return {}
    dice = np.random.default_rng(number)
    found: dict[str, float] = {}
    for kind in KINDS:
        factor = float(np.exp(dice.uniform(*np.log(_WRONG))))
        found[kind] = factor if dice.random() < 0.5 else 1 / factor
    return found


def hidden_stage(way: TimedWay, model: CostModel, factors: dict[str, float]) -> Stage:
    """A candidate under a hidden model."""
    own = model.with_policy(way.view.policy)
    if not factors:
        return way.view.stage.under(own)
    return way.view.stage.under(own, lambda prices: WrongPrices(prices, factors))


def main() -> None:
    parser = argparse.ArgumentParser(description="Hidden machines.")
    parser.add_argument("--case", action="append", choices=tuple(ALL))
    parser.add_argument("--compiles", type=int, default=Budget().compiles)
    parser.add_argument("--json", type=Path, required=True)
    asked = parser.parse_args()
    for case in asked.case:
        made = json.loads(asked.json.read_text()) if asked.json.exists() else []
        made = [one for one in made if one["case"] != case] + [
            case_of(case, asked.compiles)
        ]
        asked.json.write_text(json.dumps(made) + "\n")


if __name__ == "__main__":
    main()
