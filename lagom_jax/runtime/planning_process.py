"""Planning in a process of its own: `python -m lagom_jax.runtime.planning_process`.

It reads one request, a lowered step, from stdin and writes frames to stdout: lines of
progress, and in the end the alternatives or an error. It runs at the lowest priority on
a few cores, and ends with the process that started it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from typing import Any

from lagom_jax.cluster import Cluster
from lagom_jax.compile import Compiler, LoweredStep, wire
from lagom_jax.compile.locations import Locations
from lagom_jax.compile.worker import die_with
from lagom_jax.errors import LagomError
from lagom_jax.hlo.stated_kernels import StatedKernel
from lagom_jax.plan import to_json
from lagom_jax.planner import Budget, Planner
from lagom_jax.planner.alternatives import alternatives
from lagom_jax.planner.request import Request

LOWEST_PRIORITY = 19
_LISTS = (
    "allow_propagation_to_inputs",
    "allow_propagation_to_outputs",
    "donated",
    "device_order",
    "notes",
    "cautions",
)
_APART = ("stablehlo", "locations", "rules")


def packed_step(step: LoweredStep) -> tuple[dict[str, Any], bytes]:
    """A lowered step as a JSON object and bytes; places in the source are left out."""
    fields = [field.name for field in dataclasses.fields(step)]
    header = {name: getattr(step, name) for name in fields if name not in _APART}
    return header, step.stablehlo


def unpacked_step(header: dict[str, Any], stablehlo: bytes) -> LoweredStep:
    """The lowered step that `packed_step` has packed."""
    fields = dict(header)
    for name in _LISTS:
        fields[name] = tuple(fields[name])
    fields["mesh"] = tuple((name, size) for name, size in fields["mesh"])
    return LoweredStep(stablehlo=stablehlo, locations=Locations(), **fields)


def stay_small(cores: int) -> None:
    """Gives way to the job: lowest priority, on the last of its cores."""
    os.nice(LOWEST_PRIORITY)
    with contextlib.suppress(OSError, AttributeError):
        own = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, own[-cores:])


def main() -> None:
    """Plans once."""
    die_with(int(sys.argv[1]))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    frame = wire.unpack(sys.stdin.buffer)
    if frame is None:
        return
    asked, stablehlo = frame
    stay_small(asked["cores"])

    def tell(**header: Any) -> None:
        answers.write(wire.pack(header))
        answers.flush()

    try:
        found = _planned(asked, stablehlo, lambda line: tell(progress=line))
    except LagomError as error:
        tell(error=str(error))
    except Exception as error:
        tell(error=f"{type(error).__name__}: {error}")
    else:
        tell(alternatives=found)


def _planned(asked: dict[str, Any], stablehlo: bytes, progress: Any) -> list[Any]:
    with Compiler(store=asked["store"]) as compiler:
        planner = Planner(
            # What is lowered already is taken as it is.
            unpacked_step(asked["step"], stablehlo),  # pyright: ignore
            cluster=Cluster.parse(asked["cluster"]),
            compiler=compiler,
            kernels=[StatedKernel(**one) for one in asked["kernels"]],
        )
        plan = planner.plan(
            Request(
                levers=tuple(asked["levers"]),
                controls=asked["controls"],
                budget=Budget(**asked["budget"]),
                deterministic=asked["deterministic"],
                progress=progress,
            )
        )
        assert planner.finished is not None
        found = alternatives(planner.finished)
    taken = {
        "name": "the plan",
        "plan": to_json(plan),
        "seconds": plan.evidence.tuned.step_seconds,
        "by_model": (),
    }
    listed = [
        {
            "name": one.name,
            "plan": to_json(one.plan),
            "seconds": one.seconds,
            "by_model": one.by_model,
        }
        for one in found
    ]
    return [taken, *listed]


if __name__ == "__main__":
    main()
