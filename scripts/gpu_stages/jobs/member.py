"""One process of a job: `python -m gpu_stages.jobs.member FOLDER INDEX PORT`.

What it is asked lies in the folder as `part.json`, what it found will lie there as
`INDEX.json`.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from unittest import mock

import jax
import jax.numpy as jnp

import lagom_jax
from gpu_stages.jobs.cases import STEPS, Case
from lagom_jax.plan import Plan, load
from lagom_jax.planning import Budget
from lagom_jax.report.plan import in_words
from lagom_jax.runtime import guard, nccl
from lagom_jax.runtime.say import LagomWarning, summary
from lagom_models import TrainingStep

_PATIENCE: Final = 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """What a job is to do."""

    case: Case
    tuned: bool
    """With lagom_jax; else the step as it is, twice, and nothing of lagom_jax runs."""
    cluster: str
    levers: Sequence[str]
    compiles: int
    planning_seconds: float

    @classmethod
    def read(cls, path: Path) -> Part:
        """From the file that was written for the processes."""
        found = json.loads(path.read_text())
        return cls(**{**found, "case": Case(**found["case"])})

    def write(self, path: Path) -> None:
        """For the processes."""
        path.write_text(json.dumps(dataclasses.asdict(self)))


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """What a process found."""

    devices: str
    """What jax says that they are."""
    losses: dict[str, list[float]]
    """Of each step, by the run."""
    seconds: dict[str, list[float]]
    """Of each step, by what ran; without the first."""
    plan: str = ""
    """In words; empty where there is none that changes anything."""
    deterministic: bool = True
    """Whether the plan keeps the order in which sums are added up."""
    verdict: str = ""
    """The guard's words; empty where it did not come to one."""
    kept: bool = False
    """Whether the plan stays."""
    fallbacks: list[str] = dataclasses.field(default_factory=list[str])
    """Why the program as it was ran instead."""
    untold: str = ""
    """Why NCCL could not be told anything; empty where it could."""
    settings: int = 0
    """How many NCCL was told."""

    @classmethod
    def read(cls, path: Path) -> Found:
        """From the file that a process wrote."""
        return cls(**json.loads(path.read_text()))


def usual(step: TrainingStep) -> Found:
    """The step as it is, twice: what it does not repeat itself, no plan can keep."""
    start = beginning(step)
    losses, seconds = train(step.function, start)
    again, _ = train(step.function, start)
    return Found(_devices(), {"usual": losses, "again": again}, {"usual": seconds})


def tuned(step: TrainingStep, part: Part, folder: Path) -> Found:
    """The step behind `lagom_jax.tune`, whose guard lets both programs take turns."""
    decisions = folder / "decisions"
    guarded = lagom_jax.tune(
        step.function,
        cluster=part.cluster,
        levers=part.levers,
        verify="measure",
        deterministic=part.case.deterministic,
        budget=Budget(compiles=part.compiles, seconds=part.planning_seconds),
        patience=_PATIENCE,
        cache=decisions,
    )
    with (
        warnings.catch_warnings(record=True) as warned,
        # The guard tells medians only, and a spread needs all that it has seen.
        mock.patch.object(guard, "judge", wraps=guard.judge) as judge,
    ):
        warnings.simplefilter("always", LagomWarning)
        losses, _ = train(guarded, beginning(step))
    seconds: dict[str, list[float]] = {}
    if judge.call_args is not None:
        seconds["baseline"], seconds["tuned"] = map(list, judge.call_args.args)
    found = Found(
        _devices(),
        {"guarded": losses},
        seconds,
        fallbacks=[str(one.message) for one in warned],
        untold="" if jax.default_backend() == "cpu" else nccl.HERE.objection(),
    )
    plan = _used(decisions)
    if plan is None:
        return found
    measured = plan.evidence.measured
    return dataclasses.replace(
        found,
        plan=summary(plan, "as it was decided"),
        deterministic=plan.deterministic
        and all(setting.keeps_order for setting in plan.settings),
        verdict="" if measured is None else in_words(measured),
        kept=measured is not None and measured.kept,
        settings=len(plan.settings),
    )


def train(function: Any, start: tuple[Any, Any]) -> tuple[list[float], list[float]]:
    """The losses of some steps, and what each took but the first."""
    # The step takes its state for good, and another run begins with the same.
    state, tokens = copied(start)
    losses: list[float] = []
    seconds: list[float] = []
    for _ in range(STEPS):
        jax.block_until_ready((state, tokens))
        begun = time.perf_counter()
        state, loss = function(state, tokens)
        jax.block_until_ready((state, loss))
        seconds.append(time.perf_counter() - begun)
        losses.append(float(loss))
    return losses, seconds[1:]


def beginning(step: TrainingStep) -> tuple[Any, Any]:
    """The same state and batch each time, on the devices of all processes."""
    mesh = jax.make_mesh(
        tuple(step.mesh.shape.values()),
        step.mesh.axis_names,
        axis_types=step.mesh.axis_types,
    )
    return step.initialise(mesh)


def copied(tree: Any) -> Any:
    """All of its arrays once more, laid out in the same way."""
    # For others the step would be compiled once more.
    same = jax.tree.map(lambda leaf: leaf.sharding, tree)
    return jax.jit(lambda tree: jax.tree.map(jnp.copy, tree), out_shardings=same)(tree)


def _used(decisions: Path) -> Plan | None:
    """The plan that was used, where this process kept it, and it changes anything."""
    plans = [load(path) for path in decisions.glob("*.json")]
    useful = [plan for plan in plans if plan.levers or plan.settings]
    # There may be one with an order and one without, of which the guard measured one.
    useful.sort(key=lambda plan: plan.evidence.measured is None)
    return useful[0] if useful else None


def _devices() -> str:
    kinds = sorted({device.device_kind for device in jax.devices()})
    return f"{jax.device_count()} x {', '.join(kinds)}"


def main(words: Sequence[str]) -> None:
    folder, index, port = Path(words[0]), int(words[1]), int(words[2])
    part = Part.read(folder / "part.json")
    logging.basicConfig(format="%(relativeCreated)6.0f ms %(message)s")
    logging.getLogger("lagom_jax").setLevel(logging.INFO)
    jax.distributed.initialize(
        f"127.0.0.1:{port}",
        part.case.processes,
        index,
        local_device_ids=[0],
        initialization_timeout=60,
    )
    step = part.case.build()
    found = tuned(step, part, folder) if part.tuned else usual(step)
    (folder / f"{index}.json").write_text(json.dumps(dataclasses.asdict(found)))
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(sys.argv[1:])
