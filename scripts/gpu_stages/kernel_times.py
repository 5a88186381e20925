"""What the kernels of compiled programs take, by profiles of many runs."""

from __future__ import annotations

import dataclasses
import random
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp

from gpu_stages.compiled import first_line, module_bytes
from gpu_stages.kernel_cases import Case, arrays
from gpu_stages.profiling import WITHOUT_GRAPHS, recorded
from gpu_stages.stage import CannotRunError, Clock
from lagom_jax.cost.prices import Prices
from lagom_jax.errors import MeasurementError
from lagom_jax.hlo import read_module
from lagom_jax.measure.executions import Event
from lagom_jax.measure.overlay import match
from lagom_jax.measure.xplane import read_events, summarise
from lagom_jax.schedule.build import build_program
from lagom_jax.schedule.program import Kernel, Program

Options = Mapping[str, str]
"""The compiler's, by name."""

_WARM_RUNS: Final = 3
_FOR_THE_FIT: Final = 10.0


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """A program that is ready to run."""

    case: Case
    run: Any
    program: Program
    """As XLA scheduled it: what it fused is what is priced."""
    instead_because: str = ""
    """Why it is not the case's first choice."""

    def wait(self, arguments: Sequence[jax.Array], runs: int) -> None:
        """Runs it so often, and returns when the last run is done."""
        last: Any = arguments
        if self.case.chained:
            # A CUDA graph is written anew for arguments in another place, and those
            # here are needed again.
            last = jnp.copy(arguments[0])
        for _ in range(runs):
            last = self.run(last) if self.case.chained else self.run(*arguments)
        jax.block_until_ready(last)


def compile_case(case: Case, name: str, options: Options = WITHOUT_GRAPHS) -> Compiled:
    """Compiles a case for what is here.

    Args:
        case: The program.
        name: Tells it from all others in a profile.
        options: The compiler's.
    """
    because = ""
    try:
        run = _compile(case.function, case, name, options)
    except Exception as error:
        if case.else_function is None:
            raise
        because = first_line(error)
        run = _compile(case.else_function, case, name, options)
    program = build_program(read_module(module_bytes(run)))
    return Compiled(case, run, program, because)


def _compile(function: Any, case: Case, name: str, options: Options) -> Any:
    def step(*arguments: jax.Array) -> Any:
        return function(*arguments)

    step.__name__ = f"case_{name}"
    jitted = jax.jit(step, donate_argnums=(0,) if case.chained else ())
    return jitted.lower(*case.arguments).compile(compiler_options=dict(options))


Arguments = Mapping[Compiled, Sequence[jax.Array]]


def ready(
    programs: Sequence[Compiled], clock: Clock, reserve: float
) -> tuple[Arguments, list[str]]:
    """Makes arguments, and runs every program a few times to warm up.

    Args:
        programs: The most important first.
        clock: What is left of it; the first program is always run.
        reserve: Seconds that are needed afterwards.

    Returns:
        The arguments of those that run, and what kept others from it.
    """
    found: dict[Compiled, Sequence[jax.Array]] = {}
    failed: list[str] = []
    for number, one in enumerate(programs):
        if number and clock.left() < reserve:
            rest = "; ".join(late.case.what for late in programs[number:])
            failed.append(f"no time was left to run: {rest}")
            break
        try:
            made = arrays(one.case)
            one.wait(made, _WARM_RUNS)
        except jax.errors.JaxRuntimeError as error:
            failed.append(f"{one.case.what} does not run: {first_line(error)}")
        else:
            found[one] = made
    return found, failed


@dataclasses.dataclass(frozen=True, slots=True)
class Times:
    """What the kernels took."""

    seconds: Mapping[Compiled, Mapping[Kernel, Sequence[float]]]
    """Of one execution, a value for each round."""
    nameless_share: float
    """The part of the time that went to kernels without an instruction."""
    rounds: int


def measure_all(
    programs: Arguments,
    prices: Prices,
    folder: Path,
    clock: Clock,
    *,
    rounds: int,
    runs: int,
) -> Times:
    """Profiles rounds, in each of which every program runs, in another order each time.

    So a clock that drifts meets all of them alike.

    Args:
        programs: What to run, with its arguments.
        prices: The model's, to find instructions in the profile.
        folder: Where profiles are written.
        clock: No round but the first is begun that there is no time for.
        rounds: How many at most.
        runs: Of each program in a round.
    """
    found: dict[Compiled, dict[Kernel, list[float]]] = {
        one: defaultdict(list) for one in programs
    }
    nameless: list[float] = []
    longest = 0.0
    for number in range(rounds):
        began = time.monotonic()
        if number and clock.left() < 1.5 * longest + _FOR_THE_FIT:
            break
        order = random.Random(number).sample(list(programs), len(programs))
        events = _profiled(order, programs, folder / f"round-{number}", runs)
        nameless.append(_share_without_instruction(events))
        for one, seconds in _by_program(events, programs, prices, runs):
            for kernel, value in seconds.items():
                found[one][kernel].append(value)
        longest = max(longest, time.monotonic() - began)
    return Times(found, max(nameless), len(nameless))


def _profiled(
    order: Sequence[Compiled], programs: Arguments, folder: Path, runs: int
) -> list[Event]:
    with recorded(folder):
        for one in order:
            one.wait(programs[one], runs)
    try:
        return read_events(folder)
    except MeasurementError as error:
        raise CannotRunError(
            f"jax's profiler saw no kernel ({error}): allow this process to read the "
            "GPU's counters (root, or --cap-add=SYS_ADMIN for a container), and end "
            "other profilers, such as DCGM's"
        ) from error


def _by_program(
    events: Iterable[Event],
    programs: Iterable[Compiled],
    prices: Prices,
    runs: int,
) -> Iterable[tuple[Compiled, Mapping[Kernel, float]]]:
    by_module: defaultdict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_module[event.module].append(event)
    for one in programs:
        own = by_module.get(one.program.name, [])
        yield one, kernel_seconds(one.program, own, prices, runs)


def kernel_seconds(
    program: Program, events: Sequence[Event], prices: Prices, runs: int
) -> dict[Kernel, float]:
    """Seconds of one execution of each kernel of a program, on average.

    Args:
        program: What ran.
        events: Of its runs.
        prices: The model's.
        runs: How often it ran.
    """
    try:
        step = summarise(events)
    except MeasurementError:
        return {}
    times = {task: count for task, count, _ in program.tasks()}
    # An instruction may launch one kernel several times, so its parts are added up.
    return {
        task: sum(measured.seconds) / (runs * times[task])
        for task, measured in match(program, step, prices).measured.items()
        if isinstance(task, Kernel)
    }


def _share_without_instruction(events: Sequence[Event]) -> float:
    total = sum(event.seconds for event in events)
    lost = sum(event.seconds for event in events if not event.op)
    return lost / total if total else 0.0


def seconds_of_a_launch(
    short: Compiled, long: Compiled, *, rounds: int, runs: int
) -> list[float]:
    """Seconds between the starts of two kernels in a chain, a value for each round.

    Two programs that differ in how many kernels they have are timed from outside: what
    is the same for both, as calling them from Python, drops out.

    Raises:
        CannotRunError: XLA made as many kernels of the long chain as of the short one.
    """
    few, many = (sum(n for _, n, _ in one.program.tasks()) for one in (short, long))
    if few >= many:
        raise CannotRunError(
            f"XLA fused chains of tiny kernels into {few} and {many} kernels, so that "
            "no launch can be measured; tell the maintainers which jaxlib does that"
        )
    arguments = arrays(short.case)
    for one in (short, long):
        one.wait(arguments, _WARM_RUNS)
    found: list[float] = []
    for _ in range(rounds):
        began = time.perf_counter()
        short.wait(arguments, runs)
        middle = time.perf_counter()
        long.wait(arguments, runs)
        end = time.perf_counter()
        found.append(((end - middle) - (middle - began)) / (runs * (many - few)))
    return found
