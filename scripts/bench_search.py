"""Measures the search over settings: evaluations, seconds, and what each part gains.

    python scripts/bench_search.py  # prints, and rewrites its page

Growth is measured on steps made by hand, with as many groups as are asked for: in
windows of their own, in pairs, and in one chain. The ablation runs on steps of the
model zoo as `bench_paper.py` compiles them, and the last table on the real module of
`bench_analysis.py`. Times are CPU seconds of the one thread that works, from the
program to the choice.
"""

from __future__ import annotations

import dataclasses
import itertools
import platform
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from bench_analysis import CLUSTER, DOCS, compile_real
from bench_paper import compiled

from lagom_jax.cluster import Cluster
from lagom_jax.cost.model import CostModel
from lagom_jax.hlo import read_module
from lagom_jax.hlo.collective import Collective
from lagom_jax.hlo.groups import Groups
from lagom_jax.hlo.work import Matmul, Work
from lagom_jax.program.build import build_program
from lagom_jax.program.program import (
    Kernel,
    Launch,
    Loop,
    Node,
    Program,
    Run,
    Stream,
    Wait,
)
from lagom_jax.settings.autoccl import AutoCcl
from lagom_jax.settings.controls import PRESETS, named
from lagom_jax.settings.exhaustive import Exhaustive, TooManyError
from lagom_jax.settings.lagom import Lagom
from lagom_jax.settings.policy import Policy
from lagom_jax.settings.space import space_of
from lagom_jax.settings.stage import Stage

COUNTS = (1, 2, 4, 8, 16, 32, 64)
BY_HAND = "a40-nvlink:2x8"
# A phi-2 layer in bf16; each group has a megabyte more than the one before.
LAYER_BYTES = 157_000_000
CASES = (
    ("phi-2", "FSDP", "a40-nvlink:2x8"),
    ("phi-2", "TP=8", "a40-nvlink:2x8"),
    ("llama-3-8b", "FSDP", "h100:8x8"),
    ("llama-3-8b", "TP=8", "h100:8x8"),
    ("olmoe-1b-7b", "EP=8", "h100:8x8"),
    ("phi-2", "FSDP", "b200:8x8"),
)
ABLATION: dict[str, Policy] = {
    "AutoCCL": AutoCcl(),
    "descent only": Lagom(look_around=False),
    "and local search": Lagom(jointly=False),
    "and pairs (Lagom)": Lagom(),
    "all combinations": Exhaustive(),
}
ABLATION_CONTROLS = ("tuner", "sequence")


@dataclasses.dataclass(frozen=True)
class Searched:
    """What a search found, and what it took."""

    gain: float
    evaluations: int
    seconds: float


def search(
    program: Program, cluster: Cluster, controls: str, policy: Policy
) -> Searched | None:
    """A search by a model that knows nothing yet; None if there is too much to try."""
    began = time.process_time()
    model = CostModel.of(cluster)
    stage = Stage(program, space_of(program, cluster, named(controls)), model)
    before = stage.score(stage.untouched).step_seconds
    try:
        found = policy.choose(stage)
    except TooManyError:
        return None
    after = stage.score(found.choice).step_seconds
    seconds = time.process_time() - began
    return Searched(before / after - 1, found.evaluations, seconds)


def matmul(name: str, m: int, n: int, k: int) -> Run:
    product = Matmul(1, m, n, k, "bf16", "bf16", "bf16")
    work = Work("matmul", product.flops, 2 * k * (m + n), 2 * m * n, (product,))
    return Run(Kernel(name, work))


def collective(number: int, kind: str, nbytes: int) -> Collective:
    """Among sixteen GPUs."""
    return Collective(
        kind=kind,
        name=f"{kind} {number}",
        operands=(("bf16", nbytes // 16),),
        result_bytes=nbytes,
        groups=Groups(np.arange(16).reshape(1, 16)),
        channel_id=1,
        is_sync=False,
        is_pipelined=False,
        one_shot_kernel=False,
        op_name="",
        source="",
    )


def launch(number: int) -> Launch:
    made = collective(number, "all-gather", LAYER_BYTES + (number << 20))
    return Launch(made, Stream.COLLECTIVE, number)


def chained(first: int, count: int) -> Iterator[Node]:
    """Each is under way while the next one is launched; all share one window."""
    for number in range(first, first + count):
        yield launch(number)
        yield matmul("up", 4096, 10240, 2560)
        yield matmul("down", 4096, 2560, 10240)
        if number > first:
            yield Wait((number - 1,))
    yield Wait((first + count - 1,))


def by_hand(count: int, together: int) -> Program:
    """So many groups, of which so many share a window."""
    nodes = (
        Loop("layers", tuple(chained(first, min(together, count))), 32, True)
        for first in range(0, count, together)
    )
    return Program("by hand", tuple(nodes), 16)


def growth() -> dict[str, list[tuple[int, Searched]]]:
    shapes = {"each in a window of its own": 1, "in pairs": 2, "one chain": COUNTS[-1]}
    cluster = Cluster.parse(BY_HAND)
    found: dict[str, list[tuple[int, Searched]]] = {}
    for shape, together in shapes.items():
        found[shape] = []
        for count in COUNTS:
            program = by_hand(count, together)
            searched = search(program, cluster, "tuner", Lagom())
            assert searched is not None
            found[shape].append((count, searched))
    return found


def growth_table(found: dict[str, list[tuple[int, Searched]]]) -> str:
    lines = [
        "| groups | " + " | ".join(map(str, COUNTS)) + " |",
        "|---|" + "--:|" * len(COUNTS),
    ]
    for shape, rows in found.items():
        counts = (f"{s.evaluations:,}" for _, s in rows)
        seconds = (f"{s.seconds:.2f} s" for _, s in rows)
        lines.append(f"| evaluations, {shape} | " + " | ".join(counts) + " |")
        lines.append(f"| CPU time, {shape} | " + " | ".join(seconds) + " |")
    return "\n".join(lines)


def described(found: Searched | None) -> str:
    if found is None:
        return "too many"
    return f"{100 * found.gain:.2f} % ({found.evaluations:,})"


def ablation_table() -> str:
    lines = [
        "| step | controls | groups | " + " | ".join(ABLATION) + " |",
        "|---|---|--:|" + "--:|" * len(ABLATION),
    ]
    for case in CASES:
        scheduled = compiled(case)
        cluster, program = scheduled.cluster, build_program(scheduled.module)
        for controls in ABLATION_CONTROLS:
            groups = len(space_of(program, cluster, named(controls)).groups)
            cells = (
                described(search(program, cluster, controls, policy))
                for policy in ABLATION.values()
            )
            lines.append(
                f"| {', '.join(case)} | {controls} | {groups} | "
                + " | ".join(cells)
                + " |"
            )
            print(lines[-1], flush=True)
    return "\n".join(lines)


def real_table(program: Program) -> str:
    cluster = Cluster.parse(CLUSTER)
    lines = [
        "| controls | groups | policy | step gain | evaluations | CPU time |",
        "|---|--:|---|--:|--:|--:|",
    ]
    for controls, policy in itertools.product(PRESETS, (Lagom(), AutoCcl())):
        groups = len(space_of(program, cluster, named(controls)).groups)
        found = search(program, cluster, controls, policy)
        assert found is not None
        lines.append(
            f"| {controls} | {groups} | {policy.name} | {100 * found.gain:.2f} % | "
            f"{found.evaluations:,} | {found.seconds:.2f} s |"
        )
    return "\n".join(lines)


def plot(found: dict[str, list[tuple[int, Searched]]]) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    # The same drawing gives the same file.
    mpl.rcParams["svg.hashsalt"] = "lagom_jax"
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 4))
    for shape, rows in found.items():
        counts = [count for count, _ in rows]
        left.plot(counts, [s.evaluations for _, s in rows], "o-", label=shape)
        right.plot(counts, [s.seconds for _, s in rows], "o-", label=shape)
    left.set(xlabel="groups", ylabel="evaluations", xlim=0, ylim=0)
    right.set(xlabel="groups", ylabel="CPU seconds", xlim=0, ylim=0)
    for axes in (left, right):
        axes.grid(alpha=0.3)
    left.legend()
    figure.tight_layout()
    figure.savefig(DOCS / "search.svg", metadata={"Date": None})


def main() -> None:
    grown = growth()
    print(growth_table(grown), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "module.pb"
        versions = compile_real(path)["versions"]
        module = read_module(path.read_bytes())
    real = real_table(build_program(module))
    print(real, flush=True)
    ablation = ablation_table()
    (DOCS / "search.md").write_text(
        "# Search\n\n"
        "Measured by `python scripts/bench_search.py`: Python "
        f"{platform.python_version()}, jax {versions['jax']}, CPU seconds of one "
        "thread, from the program to the choice, prices included. An evaluation is one "
        "choice for all groups that meet, replayed; gains are of the predicted step "
        "time, over NCCL's own choices.\n\n"
        "## How it grows\n\n"
        "Steps made by hand: loops of an all-gather of a phi-2 layer beside its "
        f"feed-forward matmuls, on {BY_HAND}, tuned by Lagom with the controls "
        "`tuner`. Evaluations grow with the number of groups. So does the time, "
        "except in one chain, where every evaluation replays a window of all "
        f"groups.\n\n{growth_table(grown)}\n\n"
        "![evaluations and seconds over groups](search.svg)\n\n"
        "## A large module\n\n"
        "llama-3-8b's training step with its 32 layers written out, FSDP over 64 "
        f"H100s, {module.instruction_count:,} instructions:\n\n{real}\n\n"
        "## What each part gains\n\n"
        "Compiled training steps; step gain, and evaluations in brackets. `all "
        "combinations` is the best there is in the grid, where it can be tried.\n\n"
        f"{ablation}\n\n"
        "Most is gained by the descent, which looks at the step and not at the "
        "collective; the local search adds a little. Moving two groups at once adds "
        "nothing on these steps. It is kept for steps with more under way at once: "
        "`tests/settings/test_lagom.py` makes such steps at random.\n"
    )
    plot(grown)


if __name__ == "__main__":
    main()
