"""Stage `schedule`: is the schedule compiled without a GPU the one compiled on it?

Every step is compiled twice: as `lagom_jax` does it, without a GPU, and by jax on this
GPU, which XLA takes for one of eight by mocking the others: hosts, each with the GPUs
that this one has. A process sees one topology in its life, so this is done in a child,
`python -m gpu_stages.schedule ASKED MODULE`. Nothing is executed.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeAlias

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding

from gpu_stages.running import ChildError, run_all
from gpu_stages.schedules import Comparison, compare
from gpu_stages.stage import CannotRunError, Check, Outcome, Request, say
from lagom_jax import processes
from lagom_jax.cluster import target_config
from lagom_jax.compile import Target, Toolchain, compile_step, lower
from lagom_jax.errors import LagomError, ToolchainError
from lagom_jax.hlo import read_module
from lagom_jax.program.build import build_program
from lagom_jax.program.program import Program
from lagom_jax.units import counted
from lagom_models import TrainingStep, build

Step: TypeAlias = tuple[str, Mapping[str, Any]]
"""A model of the suite, and its sizes."""
_GPUS: Final = 8
# One GPU is all that each host has that XLA can mock, all of them in one NVLink domain.
_MOCKED: Final = f"1x{_GPUS}x1"
_STEPS: Final = (
    ("llama-3-8b", "fsdp"),
    ("llama-3-8b", "tp"),
    ("deepseek-moe-16b", "ep"),
    ("phi-2", "dp"),
    ("olmoe-1b-7b", "fsdp"),
    ("llama-3-8b", "pp"),
)
_DRY_STEPS: Final = (("phi-2", "fsdp"),)
_DRY_SIZES: Final = {"tiny": True, "layers": 1, "batch": 1, "sequence": 16}
# A test sets options for the mocked side of a dry run, so that there is a difference.
_DRY_OPTIONS: Final = "STANDIN_XLA_OPTIONS"
# The other hosts are not there to tune their share of the kernels, and would be
# waited for for ever.
_OPTIONS: Final[Mapping[str, Any]] = {"xla_gpu_shard_autotuning": False}
# To read, compare and report.
_FOR_THE_REST: Final = 15.0
_LISTED_OF_EACH: Final = 4
# One that hangs must not take the time of all.
_LONGEST_SHARE: Final = 0.6


def run(request: Request) -> Outcome:
    """Compiles as many steps as there is time for."""
    # The GPU is for the processes that mock others: each takes its memory.
    jax.config.update("jax_platforms", "cpu")
    try:
        toolchain = Toolchain.probe().require()
    except ToolchainError as error:
        raise CannotRunError(
            f"nothing can be compiled without a GPU: {error}"
        ) from error
    text = target_config(request.cluster().gpu, toolchain.version("jaxlib"))
    target = Target(f"{request.system} as {_MOCKED}", text, _MOCKED)
    checks: list[Check] = []
    findings: list[str] = []
    left_out: list[str] = []
    longest = 0.0
    for model, parallelism in _DRY_STEPS if request.dry else _STEPS:
        name = f"{model} {parallelism}"
        sizes = {"parallelism": parallelism, **(_DRY_SIZES if request.dry else {})}
        began = request.left()
        if began < longest + _FOR_THE_REST:
            left_out.append(f"{name}: no time was left")
            continue
        say(f"compiling {name} twice")
        seconds = min(began - _FOR_THE_REST, _LONGEST_SHARE * request.seconds)
        try:
            without, on_gpu, notes = _compiled((model, sizes), request, seconds, target)
        except (LagomError, ChildError) as error:
            left_out.append(f"{name}: {error}")
        else:
            comparison = compare(without, on_gpu)
            checks += _checks(name, comparison)
            findings += [f"{name}: {one}." for one in (*_places(comparison), *notes)]
        longest = max(longest, began - request.left())
    if not checks:
        raise CannotRunError(f"no step was compiled in both ways: {left_out[0]}")
    return Outcome(
        checks=tuple(checks),
        findings=tuple(findings),
        left_out=(
            *left_out,
            f"{_GPUS} GPUs of one host: with one GPU XLA mocks {_MOCKED} only",
        ),
    )


def _compiled(
    step: Step, request: Request, seconds: float, target: Target
) -> tuple[Program, Program, tuple[str, ...]]:
    """The step compiled without a GPU and on it, and notes of the first compile."""
    built = build(step[0], devices=_GPUS, **step[1])
    lowered = lower(built.function, *built.arguments)
    with ThreadPoolExecutor(1) as pool:
        # Meanwhile the GPU's own, which mostly waits for the GPU.
        without = pool.submit(
            compile_step, lowered, target, _OPTIONS, timeout_s=seconds
        )
        on_gpu = on_the_gpu(step, request, seconds, target)
        compiled = without.result()
    program = build_program(read_module(compiled.module_bytes))
    return program, on_gpu, compiled.notes


def on_the_gpu(step: Step, request: Request, seconds: float, target: Target) -> Program:
    """The step compiled in a process of its own, which has seen no other topology.

    Raises:
        ChildError: It could not be compiled, or not in time.
    """
    model, sizes = step
    asked = {
        "model": model,
        "sizes": {"devices": _GPUS, **sizes},
        "topology": _MOCKED,
        "target": target.text if request.dry else "",
        "options": {**_OPTIONS, **json.loads(os.environ.get(_DRY_OPTIONS, "{}"))},
    }
    log = request.path / f"{model}-{sizes['parallelism']}.log"
    module = log.with_suffix(".pb")
    words = ("-m", "gpu_stages.schedule", json.dumps(asked), str(module))
    try:
        run_all({log: processes.python(*words)}, seconds, processes.environment())
    except ChildError as error:
        raise ChildError(f"compiling it on the GPU: {error}") from None
    return build_program(read_module(module.read_bytes()))


def _checks(name: str, comparison: Comparison) -> Iterator[Check]:
    what = f"{name}, {counted(comparison.collectives, 'collective')}"
    order, products = comparison.other_order, comparison.other_products
    yield Check(f"{what}: in another order", order, at_most=0)
    yield Check(f"{what}: with other matrix products", products, at_most=0)


def _places(comparison: Comparison) -> Iterator[str]:
    for side, some in (
        ("without a GPU", comparison.only_first),
        ("on the GPU", comparison.only_second),
    ):
        where, rest = f"{side} alone, or at another place", len(some) - _LISTED_OF_EACH
        yield from (f"{where}: {transfer}" for transfer in some[:_LISTED_OF_EACH])
        if rest > 0:
            yield f"{where}: {counted(rest, 'other collective')}"


def _child(text: str, module_file: str) -> None:
    """Compiles what a text in JSON asks for, and writes the scheduled module."""
    asked = json.loads(text)
    try:
        step = build(asked["model"], **asked["sizes"])
        devices = _stand_ins(asked) if asked["target"] else _mocked(asked["topology"])
        compiled = _lowered_on(devices, step).compile(compiler_options=asked["options"])
    except Exception as error:
        # After jax's traceback, so that the last line is the reason.
        traceback.print_exc()
        (first, *_) = str(error).strip().splitlines() or [""]
        raise SystemExit(f"{type(error).__name__}: {first}") from None
    executable: Any = compiled.runtime_executable()
    (module,) = executable.hlo_modules()
    Path(module_file).write_bytes(module.as_serialized_hlo_module_proto())


def _lowered_on(devices: list[Any], step: TrainingStep) -> jax.stages.Lowered:
    """The step, lowered by jax for devices rather than for an abstract mesh."""
    mesh = Mesh(
        np.array(devices).reshape(step.mesh.axis_sizes),
        step.mesh.axis_names,
        axis_types=step.mesh.axis_types,
    )
    arguments = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, leaf.sharding.spec)
        ),
        step.arguments,
    )
    return step.function.lower(*arguments)


def _mocked(topology: str) -> list[Any]:
    # Read when the backend starts, and never again.
    jax.config.update("jax_mock_gpu_topology", topology)
    devices = jax.devices("gpu")
    if len(devices) == jax.local_device_count():
        raise SystemExit(
            f"jax {jax.__version__} does not mock the topology {topology}: it has the "
            f"{len(devices)} GPUs that are here"
        )
    return devices


def _stand_ins(asked: dict[str, Any]) -> list[Any]:
    """Devices of a dry run, which compile and are not there."""
    topology = topologies.get_topology_desc(
        platform="cuda", topology=asked["topology"], target_config=asked["target"]
    )
    return list(topology.devices)


if __name__ == "__main__":
    _child(*sys.argv[1:])
