"""Stage `schedule`: is the schedule compiled without a GPU the one compiled on it?

Every step is compiled twice: as `lagom_jax` does it, without a GPU, and by jax on this
GPU, which XLA takes for one of eight by mocking the others: hosts, each with the GPUs
that this one has. A process sees one topology in its life, so this is done in a child,
`python -m gpu_stages.schedule ASKED MODULE`. Nothing is executed.

Names mean nothing from one compile to the next. A collective is known by what it moves,
among whom and how often, and by the matrix products that it overlaps.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, Final, TypeAlias

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding

from gpu_stages.running import ChildError, run_all
from gpu_stages.stage import CannotRunError, Check, Outcome, Request, say
from lagom_jax import processes
from lagom_jax.cluster import target_config
from lagom_jax.compile import Target, Toolchain, compile_step, lower
from lagom_jax.errors import LagomError, ToolchainError
from lagom_jax.hlo import read_module
from lagom_jax.hlo.collective import Collective
from lagom_jax.hlo.matmul import Matmul
from lagom_jax.program.build import build_program
from lagom_jax.program.program import (
    Block,
    Branch,
    Kernel,
    Launch,
    Loop,
    Program,
    Run,
    Wait,
)
from lagom_jax.units import counted, in_bytes
from lagom_models import TrainingStep, build

Product: TypeAlias = tuple[int, int, int]
"""The smaller side of the result, the larger one, and the length of the sums.

Libraries compute a product or its transpose, and split a sum into a batch of parts: so
the smaller side comes first, and a batch counts as length.
"""
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


@dataclasses.dataclass(frozen=True, slots=True)
class Transfer:
    """One collective of a schedule."""

    kind: str
    nbytes: int
    """On the larger side."""
    types: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]
    times: int
    """Executions in a step."""
    sync: bool = False
    products: tuple[Product, ...] = ()
    """The matrix products between its start and its end, sorted."""

    @property
    def alone(self) -> Transfer:
        """The same wherever it starts and ends."""
        return dataclasses.replace(self, sync=False, products=())

    def __str__(self) -> str:
        """For people.

        Example:
            >>> among, products = ((0, 1),), ((64, 128, 32),)
            >>> print(Transfer("all-gather", 1 << 20, (), among, 32, False, products))
            all-gather of 1.05 MB in groups of 2 (32 times) beside 64 x 128 x 32
        """
        size = len(self.groups[0]) if self.groups else 0
        beside = ", ".join(" x ".join(map(str, one)) for one in self.products)
        return (
            "synchronous " * self.sync
            + f"{self.kind} of {in_bytes(self.nbytes)} in groups of {size} "
            + f"({counted(self.times, 'time')})"
            + f" beside {beside}" * bool(beside)
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """Differences of two schedules, in numbers of collectives."""

    collectives: int
    """In the schedule that has more of them."""
    other_order: int
    """Those that are not the same, or not in the same order."""
    other_products: int
    """Those that are not the same wherever they are, or overlap other products."""
    only_first: tuple[str, ...]
    """Those at a place, or beside products, that the second schedule does not have."""
    only_second: tuple[str, ...]


def compare(first: Program, second: Program) -> Comparison:
    """Compares two programs of one step."""
    a, b = transfers(first), transfers(second)
    most = max(len(a), len(b))
    order = SequenceMatcher(
        None, [x.alone for x in a], [x.alone for x in b], autojunk=False
    )
    changes = SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
    other = [places for what, *places in changes if what != "equal"]
    return Comparison(
        most,
        most - sum(one.size for one in order.get_matching_blocks()),
        most - (Counter(a) & Counter(b)).total(),
        only_first=tuple(str(x) for begin, end, _, _ in other for x in a[begin:end]),
        only_second=tuple(str(x) for _, _, begin, end in other for x in b[begin:end]),
    )


def transfers(program: Program) -> tuple[Transfer, ...]:
    """The collectives of a program in the order of their starts."""
    walk = _Walk()
    walk.block(program.body, 1)
    return tuple(one.transfer() for one in walk.found)


@dataclasses.dataclass(slots=True)
class _UnderWay:
    """A collective as it is met, and the kernels after its start."""

    collective: Collective
    times: int
    sync: bool
    kernels: dict[Kernel, None] = dataclasses.field(default_factory=dict[Kernel, None])

    def transfer(self) -> Transfer:
        task = self.collective
        groups = tuple(tuple(map(int, row)) for row in task.groups.members)
        what = (task.kind, task.bytes, task.element_types, groups, self.times)
        products = (one for kernel in self.kernels for one in kernel.work.matmuls)
        return Transfer(*what, self.sync, tuple(sorted(map(_known_as, products))))


class _Walk:
    """Goes through a program, with what is under way."""

    def __init__(self) -> None:
        self.found: list[_UnderWay] = []
        self._open: dict[int, list[_UnderWay]] = {}

    def block(self, block: Block, times: int, *, again: bool = False) -> None:
        """Meets every node; a second time only for what the first left under way."""
        for node in block:
            if isinstance(node, Run) and isinstance(node.task, Kernel):
                for one in itertools.chain.from_iterable(self._open.values()):
                    one.kernels[node.task] = None
            elif isinstance(node, Run | Launch) and isinstance(node.task, Collective):
                if not again:
                    one = _UnderWay(node.task, times, isinstance(node, Run))
                    self.found.append(one)
                    if isinstance(node, Launch):
                        self._open.setdefault(node.token, []).append(one)
            elif isinstance(node, Wait):
                for token in node.tokens:
                    self._open.pop(token, None)
            elif isinstance(node, Loop):
                self._loop(node, times, again=again)
            elif isinstance(node, Branch):
                for arm in node.arms:
                    self.block(arm, times, again=again)

    def _loop(self, loop: Loop, times: int, *, again: bool) -> None:
        before = set(self._open)
        self.block(loop.body, times * loop.trips, again=again)
        carried = {t: o for t, o in self._open.items() if t not in before}
        if carried and loop.trips > 1:
            # What one iteration starts may end in the next.
            others = {t: o for t, o in self._open.items() if t in before}
            self._open = carried
            self.block(loop.body, times, again=True)
            self._open |= others


def _known_as(product: Matmul) -> Product:
    small, large = sorted((product.m, product.n))
    return small, large, product.batch * product.k


def _child(text: str, module_file: str) -> None:
    """Compiles what a text in JSON asks for, and writes the scheduled module."""
    asked = json.loads(text)
    try:
        # Before the step, which starts jax's backends: the topology is read then.
        mocked = [] if asked["target"] else _mocked(asked["topology"])
        step = build(asked["model"], **asked["sizes"])
        devices = mocked or _stand_ins(asked)
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
