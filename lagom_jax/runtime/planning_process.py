"""Planning in a process of its own: `python -m lagom_jax.runtime.planning_process`.

It reads requests from stdin and writes frames to stdout: lines of progress, and in the
end an answer or an error. The first request is a lowered step, with a profile of it
where there is one, and is answered by a plan and its alternatives; the others ask for
settings around one of these. It runs at the lowest priority on a few cores, and ends
with the process that started it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lagom_jax.cluster import Cluster
from lagom_jax.compile import Compiler, LoweredStep, wire
from lagom_jax.compile.child import PROGRESS
from lagom_jax.compile.locations import Locations
from lagom_jax.compile.worker import die_with
from lagom_jax.cost.model import CostModel
from lagom_jax.errors import MeasurementError
from lagom_jax.hlo.stated_kernels import StatedKernel
from lagom_jax.measurements import Calibration, read_profile
from lagom_jax.measurements.profiled import calibration_of_run
from lagom_jax.online.belief import Purchase, StepCandidate
from lagom_jax.plan import to_json
from lagom_jax.planner import Budget, Planner
from lagom_jax.planner.alternatives import chosen
from lagom_jax.planner.decide import TimedWay
from lagom_jax.planner.request import Request
from lagom_jax.planner.run import Finished
from lagom_jax.planner.settings_around import settings_around
from lagom_jax.program.build import build_program
from lagom_jax.runtime.offer import OfferedPlan
from lagom_jax.runtime.say import reasons
from lagom_jax.scheduled import read_scheduled
from lagom_jax.typed_json import plain

LOWEST_PRIORITY = 19
MODULE = "step.txt"
"""The program that ran, in the folder of its profile."""
_APART = ("stablehlo", "locations", "rules")


def packed_step(step: LoweredStep) -> tuple[dict[str, Any], bytes]:
    """A lowered step as a JSON object and bytes; places in the source are left out."""
    fields = [field.name for field in dataclasses.fields(step)]
    header = {name: getattr(step, name) for name in fields if name not in _APART}
    return header, step.stablehlo


def unpacked_step(header: dict[str, Any], stablehlo: bytes) -> LoweredStep:
    """The lowered step that `packed_step` has packed."""
    fields = {name: _with_tuples(value) for name, value in header.items()}
    return LoweredStep(stablehlo=stablehlo, locations=Locations(), **fields)


def _with_tuples(value: Any) -> Any:
    """A value that JSON has made lists of the tuples in."""
    is_list = isinstance(value, list)
    return tuple(map(_with_tuples, value)) if is_list else value


def stay_small(cores: int) -> None:
    """Gives way to the job: lowest priority, on the last of its cores."""
    os.nice(LOWEST_PRIORITY)
    with contextlib.suppress(OSError, AttributeError):
        own = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, own[-cores:])


def main() -> None:
    """Answers until nobody asks any more."""
    die_with(int(sys.argv[1]))
    stay_small(int(sys.argv[2]))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def tell(**header: Any) -> None:
        answers.write(wire.pack(header))
        answers.flush()

    known = _Known(lambda line: tell(**{PROGRESS: line}))
    while (frame := wire.unpack(sys.stdin.buffer)) is not None:
        asked, stablehlo = frame
        try:
            answer = (
                known.around(asked["around"])
                if "around" in asked
                else known.planned(asked, stablehlo)
            )
        except Exception as error:
            tell(error=reasons(error))
        else:
            tell(**answer)


class _Known:
    """A step that was planned for, and the candidates that were told of it."""

    def __init__(self, progress: Callable[[str], None]) -> None:
        self._progress = progress
        self._finished: Finished | None = None
        self._ways: dict[str, TimedWay] = {}
        self._rounds: set[int] = set()

    def planned(self, asked: Mapping[str, Any], stablehlo: bytes) -> dict[str, Any]:
        """The plan, what came of the profile, and the alternatives."""
        cluster = Cluster.parse(asked["cluster"])
        calibration, calibrated = None, ""
        if asked["profile"]:
            try:
                calibration = _calibration(Path(asked["profile"]), cluster)
                calibrated = (
                    f"calibrated by {calibration.words()} of its own steps: "
                    f"{calibration.factors_in_words()}"
                )
            except MeasurementError as error:
                calibrated = f"not calibrated: {error}"
            self._progress(calibrated)
        with Compiler(store=asked["store"]) as compiler:
            planner = Planner(
                # What is lowered already is taken as it is.
                unpacked_step(asked["step"], stablehlo),  # pyright: ignore
                cluster=cluster,
                compiler=compiler,
                calibration=calibration,
                kernels=[StatedKernel(**one) for one in asked["kernels"]],
            )
            plan = planner.plan(
                Request(
                    levers=tuple(asked["levers"]),
                    controls=asked["controls"],
                    budget=Budget(**asked["budget"]),
                    deterministic=asked["deterministic"],
                    progress=self._progress,
                )
            )
        assert planner.finished is not None
        self._finished = planner.finished
        found = [self._offered(name, way) for name, way in chosen(self._finished)]
        return {
            "plan": to_json(plan),
            "alternatives": plain(found),
            "calibrated": calibrated,
        }

    def around(self, document: str) -> dict[str, Any]:
        """Settings around those of a plan; of none, around the step as it was."""
        way = self._ways.get(document or next(iter(self._ways), ""))
        if self._finished is None or way is None:
            return {"around": []}
        program = way.trial.number
        start, self._rounds = program not in self._rounds, self._rounds | {program}
        found = settings_around(self._finished, way, start=start)
        offered = [
            self._offered(
                one.name, one.way, Purchase(0, one.saved_seconds, one.added_seconds)
            )
            for one in found
        ]
        return {"around": plain(offered)}

    def _offered(
        self, name: str, way: TimedWay, purchase: Purchase | None = None
    ) -> OfferedPlan:
        assert self._finished is not None
        scored, document = way.scored, to_json(self._finished.plan_of(way))
        self._ways[document] = way
        timed = StepCandidate(name, scored.seconds, scored.by_model, purchase)
        return OfferedPlan(document, timed)


def _calibration(folder: Path, cluster: Cluster) -> Calibration:
    """The calibration of a step that was profiled, from its own profile."""
    program = build_program(read_scheduled(folder / MODULE, cluster).module)
    step = read_profile(folder)
    return calibration_of_run(program, step, cluster, CostModel.of(cluster))


if __name__ == "__main__":
    main()
