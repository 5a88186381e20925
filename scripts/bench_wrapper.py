"""Measures what `lagom_jax.tune` adds to a call of a jitted function.

    python scripts/bench_wrapper.py           # prints
    python scripts/bench_wrapper.py --docs  # and rewrites its page

The function itself and its wrappers take turns, so that a load of the machine meets
all of them. No plan is made: that one is looked for and not found leads to the same
way of calling, and needs no compiler for GPUs.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import gc
import logging
import os
import statistics
import sys
import time
import tracemalloc
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import lagom_jax
from machine import processor

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "reference" / "benchmarks" / "wrapper.md"
ROUNDS, CALLS, LEAVES = 60, 400, 300
GROWTH_CALLS = 4_000
Calls = Sequence[tuple[tuple[Any, ...], dict[str, Any]]]


@dataclasses.dataclass(frozen=True)
class Case:
    """A function, and calls that come one after the other, again and again."""

    jitted: Callable[..., Any]
    calls: Calls


def tiny() -> Case:
    """As little as there can be."""
    return Case(jax.jit(lambda x: x + 1), [((jnp.ones(8),), {})])


def leaves(size: int = 8) -> dict[str, jax.Array]:
    """A state as large as that of a model."""
    return {f"layer_{n}": jnp.ones(size) for n in range(LEAVES)}


def large() -> Case:
    """Many arrays in, one out."""
    return Case(jax.jit(lambda tree: tree["layer_0"] + 1), [((leaves(),), {})])


def statics() -> Case:
    """Static arguments, keywords and a default."""

    @functools.partial(jax.jit, static_argnames=("kind", "power"))
    def step(x: Any, kind: str, *, scale: Any = 1.0, power: int = 1) -> Any:
        return (x if kind == "same" else -x) ** power * scale

    return Case(step, [((jnp.ones(8), "same"), {"scale": 2.0, "power": 2})])


def tiny_in_turn() -> Case:
    """Two shapes, never twice the same."""
    calls: Calls = [((jnp.ones(size),), {}) for size in (8, 9)]
    return Case(tiny().jitted, calls)


def large_in_turn() -> Case:
    """The same with many arrays."""
    calls: Calls = [((leaves(size),), {}) for size in (8, 9)]
    return Case(large().jitted, calls)


CASES = {
    "one array": tiny,
    f"{LEAVES} arrays": large,
    "static arguments and keywords": statics,
    "one array, two shapes in turn": tiny_in_turn,
    f"{LEAVES} arrays, two shapes in turn": large_in_turn,
}


def wrapped(case: Case) -> dict[str, Callable[..., Any]]:
    """The function and its wrappers, after they have decided."""
    tune = functools.partial(lagom_jax.tune, case.jitted, cache=False)
    found = {
        "jitted": case.jitted,
        "off": tune(mode="off"),
        "tuned": tune(mode="load", cluster="h100:1x1"),
    }
    for function in found.values():
        run(function, case.calls, 100)
    return found


def run(function: Callable[..., Any], calls: Calls, count: int) -> float:
    """Seconds of a processor that a call takes, others that use it left out."""
    turns = count // len(calls)
    result = None
    start = time.process_time()
    for _ in range(turns):
        for args, kwargs in calls:
            result = function(*args, **kwargs)
    seconds = time.process_time() - start
    jax.block_until_ready(result)
    return seconds / (turns * len(calls))


def growth(function: Callable[..., Any], calls: Calls) -> tuple[int, int]:
    """Blocks and bytes that many calls leave behind."""
    tracemalloc.start()
    run(function, calls, GROWTH_CALLS // 4)
    gc.collect()
    blocks, (nbytes, _) = sys.getallocatedblocks(), tracemalloc.get_traced_memory()
    run(function, calls, GROWTH_CALLS)
    gc.collect()
    blocks = sys.getallocatedblocks() - blocks
    nbytes = tracemalloc.get_traced_memory()[0] - nbytes
    tracemalloc.stop()
    return blocks, nbytes


def measured(case: Case) -> list[str]:
    """The cells of one row."""
    functions = wrapped(case)
    times: dict[str, list[float]] = {name: [] for name in functions}
    for number in range(ROUNDS):
        names = list(functions) if number % 2 else list(reversed(functions))
        for name in names:
            times[name].append(1e6 * run(functions[name], case.calls, CALLS))
    jitted = statistics.median(times["jitted"])
    cells = [f"{jitted:.1f}"]
    for name in ("off", "tuned"):
        added = [
            one - other for one, other in zip(times[name], times["jitted"], strict=True)
        ]
        middle = statistics.median(added)
        slow = statistics.quantiles(added, n=10)[-1]
        cells += [f"{middle:+.2f} ({slow:+.2f})", f"{1 + middle / jitted:.2f}"]
    blocks, nbytes = growth(functions["tuned"], case.calls)
    return [*cells, f"{blocks} ({nbytes:,})"]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--docs", action="store_true", help=f"rewrite {PAGE.name}")
    wanted = arguments.parse_args()
    # That there is no plan to be loaded is what is wanted here.
    warnings.simplefilter("ignore", UserWarning)
    logging.getLogger("lagom_jax").setLevel(logging.ERROR)
    load = os.getloadavg()[0]
    lines: list[str] = []
    for name, make in CASES.items():
        cells = measured(make())
        print(f"{name}: {' | '.join(cells)}", flush=True)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    print(f"load when it began: {load:.1f}")
    if wanted.docs:
        PAGE.write_text(page(lines, load))


def page(lines: Sequence[str], load: float) -> str:
    """The whole page."""
    heads = "the jitted function | `mode='off'` adds | ratio | tuned adds | ratio"
    return f"""\
# The wrapper

Measured by `python scripts/bench_wrapper.py --docs` on {os.cpu_count()} cores of a \
{processor()}, with jax {jax.__version__} and a load of {load:.1f} when it began: \
where that is more than there are cores, others were using them.

Microseconds of a processor for one call, without what it waits for: the median of \
{ROUNDS} rounds of {CALLS} calls, and in brackets what a tenth of the rounds exceeds. \
The function and its wrappers take turns; differences are those of one round. The last \
column is what \
{GROWTH_CALLS:,} calls of the tuned function leave behind in memory: blocks, and in \
brackets bytes.

| call | {heads} | left behind |
|---|{"--:|" * 6}
{chr(10).join(lines)}
"""


if __name__ == "__main__":
    main()
