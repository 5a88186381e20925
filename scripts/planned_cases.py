"""The steps that benchmarks of planning are about, and the rows that they keep."""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeVar

from unseen_steps import SEEN_SINCE, UNSEEN, Step

from lagom_jax.cluster import Cluster
from lagom_jax.commands.terminal import import_jax
from lagom_jax.plan import Plan
from lagom_jax.planner import Budget, Planner
from lagom_jax.planner.rewrite_ways import RewriteWay, Rewritten

CASES: dict[str, Step] = {
    "fsdp": ("llama-3-8b", "h100:8x8", {"parallelism": "fsdp", "batch": 1}),
    "fsdp, batch 2": ("llama-3-8b", "h100:8x8", {"parallelism": "fsdp", "batch": 2}),
    "fsdp, unrolled": (
        "llama-3-8b",
        "h100:8x8",
        {"parallelism": "fsdp", "batch": 1, "layers": 8, "scan": False},
    ),
    "tp": ("llama-3-8b", "h100:2x8", {"parallelism": "tp", "batch": 8}),
    "tp, sliced": ("llama-3-8b", "h100:2x8", {"parallelism": "tp-sliced", "batch": 8}),
    "tp-sp": ("llama-3-8b", "h100:2x8", {"parallelism": "tp-sp", "batch": 8}),
    "tp-sp, one host": (
        "llama-3-8b",
        "h100:1x8",
        {"parallelism": "tp-sp", "batch": 8},
    ),
    "moe": ("deepseek-moe-16b", "h100:8x8", {"parallelism": "ep"}),
    "moe, small": ("olmoe-1b-7b", "h100:8x8", {"parallelism": "ep"}),
    "fsdp, A40": ("llama-3-8b", "a40-nvlink:2x8", {"parallelism": "fsdp"}),
    "fsdp, 8k": (
        "llama-3-8b",
        "h100:8x8",
        {
            "parallelism": "fsdp",
            "batch": 1,
            "sequence": 8192,
            "attention": "cudnn",
        },
    ),
}
_FOUR: dict[str, Any] = {"layers": 4}
ONE_HOST: dict[str, Step] = {
    f"{how}, {gpu}": (
        "llama-3-8b",
        f"{gpu}:1x8",
        {"parallelism": how, "batch": 1 if how == "fsdp" else 8, **_FOUR},
    )
    for gpu in ("h100", "b200")
    for how in ("fsdp", "tp", "tp-sliced")
}
"""Steps of which all collectives stay inside one host."""
STEPS: dict[str, Step] = {**CASES, **ONE_HOST, **SEEN_SINCE, **UNSEEN}
"""Those that the planner was developed beside, and those that it was not."""
# Without a GPU XLA cannot autotune its own matmul kernels, and refuses some shapes.
OPTIONS = {"xla_gpu_enable_triton_gemm": False}

_A_DAY = 86_400.0


class CaseRow(Protocol):
    """What all rows say: on which case, made with what."""

    @property
    def case(self) -> str:
        """One of `STEPS`."""
        ...

    @property
    def versions(self) -> str:
        """Of all that the figures depend on."""
        ...


Row = TypeVar("Row")


def import_jax_and_zoo() -> ModuleType:
    """The zoo of models, once jax is there for it."""
    import_jax()
    import lagom_models

    return lagom_models


def planner_of(
    case: str,
    way: RewriteWay | None = None,
    *,
    steps: Mapping[str, Step] | None = None,
    search_anew: bool = False,
) -> Planner:
    """Planner of a case.

    Args:
        case: Its name.
        way: How it is rewritten; None for as it is.
        steps: The steps that have such names; by default all that are listed here.
        search_anew: As for `Planner`.
    """
    return rewritten_of(case, way, steps=steps, search_anew=search_anew).planner


def rewritten_of(
    case: str,
    way: RewriteWay | None = None,
    *,
    steps: Mapping[str, Step] | None = None,
    search_anew: bool = False,
) -> Rewritten:
    """Planner of a case, and what became of its collectives; as `planner_of`."""
    lagom_models = import_jax_and_zoo()
    model, name, asked = (steps or STEPS)[case]
    cluster = Cluster.parse(name)
    step = lagom_models.build(model, devices=cluster.devices, **asked)
    function = step.function
    if way is not None:
        function = way.of(function)
    planner = Planner(
        function,
        *step.arguments,
        cluster=cluster,
        compiler_options=OPTIONS,
        name=step.name,
        description=step.describe(),
        search_anew=search_anew,
    )
    if way is None:
        return Rewritten(planner)
    return Rewritten(planner, [site.line for site in function.sites], function.left)


def budget_of(compiles: int) -> Budget:
    """A budget that no clock ends: a busy machine makes the same plan."""
    return Budget(compiles=compiles, seconds=_A_DAY)


def arguments(title: str, page: Path) -> argparse.ArgumentParser:
    """The arguments that all of these benchmarks have."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--case", action="append", choices=tuple(STEPS))
    parser.add_argument("--json", type=Path, metavar="OUT", help="write rows as JSON")
    parser.add_argument(
        "--from",
        action="append",
        dest="made",
        type=Path,
        metavar="JSON",
        help="take rows from a file that --json wrote instead of making them",
    )
    parser.add_argument("--docs", action="store_true", help=f"rewrite {page.name}")
    return parser


def read_rows(paths: Iterable[Path], kind: type[Row]) -> Iterator[Row]:
    """The rows that files hold."""
    for path in paths:
        yield from (kind(**fields) for fields in json.loads(path.read_text()))


def write_rows(path: Path | None, rows: Sequence[Any]) -> None:
    """Writes rows, if there is a place for them."""
    if path is not None:
        listed = [dataclasses.asdict(row) for row in rows]
        path.write_text(json.dumps(listed, indent=1) + "\n")


def gathered(
    asked: argparse.Namespace,
    kind: type[Row],
    suite: Iterable[str],
    make: Callable[[str], Row],
    table: Callable[[list[Row]], str],
) -> list[Row]:
    """A row for each case that was asked for, made now or read from files.

    Args:
        asked: What `arguments` parsed.
        kind: Of the rows.
        suite: The cases, if none is named.
        make: Makes the row of a case; each is shown and written when it is done.
        table: How rows are shown.
    """
    rows = list(read_rows(asked.made or (), kind))
    for case in () if asked.made else asked.case or suite:
        rows.append(make(case))
        print(table(rows[-1:]), flush=True)
        write_rows(asked.json, rows)
    return rows


def write_page(page: Path, figures: str) -> None:
    """Writes a page of figures; what they say stays, written by hand below them."""
    by_hand = "\n## What the figures say\n"
    said = page.read_text().partition(by_hand)[2] if page.exists() else ""
    page.write_text(figures + (by_hand + said if said else ""))


def made_with(rows: Iterable[CaseRow]) -> str:
    """The versions behind rows, in words."""
    versions = " and ".join(dict.fromkeys(row.versions for row in rows))
    return f"Python {platform.python_version()}, {versions}"


def versions_of(plan: Plan) -> str:
    """Of all that a plan was made with."""
    return ", ".join(f"{name} {version}" for name, version in plan.holds_for.versions)


def described(rows: Iterable[CaseRow]) -> str:
    """Which model on which cluster each case is."""
    cases = dict.fromkeys(row.case for row in rows)
    return "; ".join(
        f"{case} is {STEPS[case][0]} on {STEPS[case][1]}" for case in cases
    )


def milliseconds(seconds: float) -> str:
    """As tables have it.

    Example:
        >>> milliseconds(0.4059)
        '405.9 ms'
    """
    return f"{1e3 * seconds:.1f} ms"
