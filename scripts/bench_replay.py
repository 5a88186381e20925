"""Measures the replay of a compiled program, and the search for an order of it.

    python scripts/bench_replay.py  # prints, and rewrites its page

The programs are the real module of `bench_analysis.py`, llama-3-8b's training step with
all 32 layers written out, FSDP over 64 devices, and the same with a loop over layers. A
search asks what the step takes in one order after another, each replayed as far as a
move changed it. Times are CPU seconds of the one thread that works, with Python's
garbage collector held off, as `timeit` does; how long it takes once is measured apart.
"""

from __future__ import annotations

import gc
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench_analysis import CLUSTER, DOCS, compile_real

from lagom_jax.cluster import Cluster
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.replay import replay
from lagom_jax.cost.timeline import Timeline
from lagom_jax.hlo import read_module
from lagom_jax.hlo.module import Module
from lagom_jax.order.find import Ordering, find_order
from lagom_jax.order.incremental import IncrementalReplay
from lagom_jax.order.neighbours import Neighbours
from lagom_jax.order.parameters import PARAMETERS
from lagom_jax.order.sequence import Inner, sequence_of
from lagom_jax.order.splices import Splice
from lagom_jax.order.terms import Terms
from lagom_jax.program.build import Builder, build_program
from lagom_jax.settings.controls import FINE, named
from lagom_jax.settings.space import space_of
from lagom_jax.settings.stage import Stage

REPETITIONS = 7
ORDERS = 20_000
MOVED = 40
SEARCHES = 3
SEED = 1


def seconds(act: Callable[[], object]) -> float:
    gc.disable()
    began = time.process_time()
    act()
    taken = time.process_time() - began
    gc.enable()
    return taken


def repeated(act: Callable[[], object]) -> list[float]:
    return [seconds(act) for _ in range(REPETITIONS)]


def row(what: str, times: list[float]) -> str:
    figures = (statistics.median(times), min(times), max(times))
    median, least, most = (f"{1e3 * figure:.3g}" for figure in figures)
    return f"| {what} | {len(times)} | {median} ms | {least}-{most} ms |"


def ratios(what: str, whole: list[float], parts: list[float]) -> str:
    """The median of the whole to each part, so a spread of moves and not of noise."""
    times = sorted(statistics.median(whole) / part for part in parts)
    median, least, most = statistics.median(times), times[0], times[-1]
    return f"| {what} | {len(times)} | {median:.3g} : 1 | {least:.3g}-{most:.3g} : 1 |"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, captured = Path(folder) / "module.pb", Path(folder) / "captured.pb"
        versions = compile_real(path, captured=captured)["versions"]
        module = read_module(path.read_bytes())
        written_out = table(module, read_module(captured.read_bytes()))
        collecting = statistics.median(repeated(gc.collect))
        compile_real(path, scan=True, captured=captured)
        looped = read_module(path.read_bytes())
        in_a_loop = table(looped, read_module(captured.read_bytes()))
    text = (
        "# Replay\n\n"
        "Measured by `python scripts/bench_replay.py`: Python "
        f"{platform.python_version()}, jax {versions['jax']}, CPU seconds of one "
        "thread, without Python's garbage collector, which takes "
        f"{1e3 * collecting:.0f} ms where it goes through all of the module. A price "
        "is known once any collective of the same kind, size and groups had that "
        "setting. Orders are those of the module as XLA's scheduler left it.\n\n"
        "llama-3-8b's training step with its 32 layers written out, FSDP over 64 "
        f"H100s, {described(module)}:\n\n{written_out}\n\n"
        f"The same with a loop over the layers, {described(looped)}:\n\n{in_a_loop}\n"
    )
    print(text)
    (DOCS / "replay.md").write_text(text)


def described(module: Module) -> str:
    program = build_program(module)
    return (
        f"{module.instruction_count:,} instructions, {len(program.body):,} nodes, "
        f"{len(list(program.collectives())):,} collectives"
    )


def table(module: Module, captured: Module) -> str:
    program, cluster = build_program(module), Cluster.parse(CLUSTER)

    def model() -> CostModel:
        return CostModel.of(cluster)

    def contended(prices: CostModel) -> Timeline:
        return replay(program, prices, prices.contention())

    known = model()
    contended(known)

    def again() -> Timeline:
        return contended(known)

    return "\n".join(
        [
            "| | times | median | least to most |",
            "|---|--:|--:|--:|",
            row("replay, all priced anew", repeated(lambda: replay(program, model()))),
            row(
                "replay with contention, all priced anew",
                repeated(lambda: contended(model())),
            ),
            row("replay with contention, prices known", repeated(again)),
            *orders(captured, cluster),
            row(
                f"search for an order, {ORDERS:,} tried",
                [seconds(lambda: order(captured, cluster)) for _ in range(SEARCHES)],
            ),
        ]
    )


def orders(module: Module, cluster: Cluster) -> Iterator[str]:
    """An order after another, of the computation that launches most."""
    builder, program = Builder(module), build_program(module)
    space = space_of(program, cluster, named("tuner"), FINE)
    stage = Stage(program, space, CostModel.of(cluster))
    found = max(
        (
            sequence_of(builder, computation, Inner({}, {}))
            for computation in module.computations.values()
            if computation.sequence is not None
        ),
        key=lambda sequence: sum(len(unit.launches) for unit in sequence.units),
    )
    replay_of = IncrementalReplay(found, Terms(stage, stage.untouched), found.given)
    neighbours = Neighbours(found.units, found.given, PARAMETERS)
    ends = [unit.number for unit in found.units if unit.launches or unit.tokens]
    units = random.Random(SEED).sample(ends, min(MOVED, len(ends)))
    moves = [neighbour for unit in units for neighbour in neighbours.shifted(unit)]
    whole = [Splice(0, found.given)]
    length = f"{len(found.units):,} units"
    kept = repeated(lambda: replay_of.take(whole))
    yield row(f"an order of {length}, all of it", kept)
    part = [seconds(lambda m=m: replay_of.seconds_with(m)) for m in moves]
    yield row(f"an order of {length}, where a move changed it", part)
    limit = replay_of.seconds
    ended = [seconds(lambda m=m: replay_of.seconds_with(m, limit)) for m in moves]
    yield row("the same, until it cannot be better than before", ended)
    yield ratios(
        "all of it, so many times as long as where a move changed it", kept, part
    )
    yield ratios("the same, until it cannot be better than before", kept, ended)


def order(module: Module, cluster: Cluster) -> Ordering:
    """A whole search, all that it works out before it included."""
    model, controls = CostModel.of(cluster), named("tuner")
    return find_order(module, cluster, model, controls=controls, evaluations=ORDERS)


if __name__ == "__main__":
    main()
