"""`lagom validate`: how far the model is from every measurement the project knows."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from importlib import resources
from typing import Any

import numpy as np
from rich.table import Table

import lagom_jax.cost
from lagom_jax.commands import VERBS
from lagom_jax.commands.rows import collective_microseconds, matmul_microseconds
from lagom_jax.commands.terminal import console, writing
from lagom_jax.cost.kernel_constants import load_matmul_record
from lagom_jax.cost.surface import load_record
from lagom_jax.measurements.rows import COLLECTIVE_COLUMNS, MATMUL_COLUMNS, MEASURED
from lagom_jax.measurements.table import Cells, load_text, parse_table

LARGE = 1 << 20
SHORT_MICROSECONDS = 20.0
NOT_KEPT_OUT = "not kept out"
"""Matmuls: some were fitted, some not; none of them is a test."""
FITTED = "fitted"
_OF_THE_FIT = (FITTED, "fitted, with the launch")
"""The label of rows that the model was fitted to."""


@dataclasses.dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Errors of the model on some measurements, as parts of the measured time."""

    gpu: str
    op: str
    size: str
    rows_are: str
    """`fitted`, `not kept out`, or `kept out: ...`: the fit had not seen them."""
    rows: int
    median: float
    p90: float


def add(verbs: Any) -> None:
    """Declares the verb."""
    verb = verbs.add_parser(
        "validate",
        help=VERBS["validate"],
        description="Prints the errors of the model on the measurements that come "
        "with it: those it was fitted to, and those kept out of a fit in turn, from "
        "the records. Nothing is run on a GPU.",
    )
    verb.add_argument("--json", action="store_true", help="print JSON")
    verb.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the verb."""
    scores = all_scores()
    if arguments.json:
        rows = [dataclasses.asdict(score) for score in scores]
        with writing():
            print(json.dumps({"scores": rows}, indent=2))
        return 0
    table = Table(box=None)
    for column in ("GPU", "what", "size", "rows are", "rows", "median", "p90"):
        right = column in ("rows", "median", "p90")
        table.add_column(column, justify="right" if right else "left", no_wrap=True)
    for s in scores:
        figures = (str(s.rows), f"{s.median:.1%}", f"{s.p90:.1%}")
        table.add_row(s.gpu, s.op, s.size, s.rows_are, *figures)
    with writing():
        console().print(table)
    return 0


def all_scores() -> list[ErrorSummary]:
    """Every score, collectives before matmuls, the fitted before the kept out.

    Example:
        >>> {score.gpu for score in all_scores()} >= {"h100-sxm", "b200"}
        True
    """

    def collectives(
        name: str, sort: Callable[[Cells], tuple[str, str]]
    ) -> list[ErrorSummary]:
        return _on_rows(name, COLLECTIVE_COLUMNS, collective_microseconds, sort, FITTED)

    found = [
        *collectives("collectives.csv", _launched),
        *collectives("nccl_alone.csv", _collective),
        *_kept_out(),
    ]
    order = {FITTED: 0}
    found.sort(key=lambda s: (s.gpu, s.op == "all", s.op, order.get(s.rows_are, 1)))
    networks = collectives("network.csv", _over_network)
    found += sorted(networks, key=lambda s: (s.gpu, s.op, s.size))
    for name in ("matmuls.csv", "matmuls_alone.csv"):
        price = matmul_microseconds
        found += _on_rows(name, MATMUL_COLUMNS, price, _matmul, NOT_KEPT_OUT)
    found += _matmuls_kept_out()
    return found


def markdown(scores: Iterable[ErrorSummary]) -> str:
    """The scores as a table for a page.

    Example:
        >>> one = ErrorSummary("h100-sxm", "all", "all", "fitted", 9, 0.02, 0.1)
        >>> print(markdown([one]))
        | GPU | what | size | rows are | rows | median | p90 |
        |---|---|---|---|---:|---:|---:|
        | h100-sxm | all | all | fitted | 9 | 2.0 % | 10.0 % |
    """
    lines = [
        "| GPU | what | size | rows are | rows | median | p90 |",
        "|---|---|---|---|---:|---:|---:|",
    ]
    lines += [
        f"| {s.gpu} | {s.op} | {s.size} | {s.rows_are} | {s.rows} "
        f"| {100 * s.median:.1f} % | {100 * s.p90:.1f} % |"
        for s in scores
    ]
    return "\n".join(lines)


def _collective(cells: Cells) -> tuple[str, str]:
    large = int(cells["tensor_bytes"]) >= LARGE
    return cells["op"], "1 MiB and more" if large else "below 1 MiB"


def _launched(cells: Cells) -> tuple[str, str]:
    op, size = _collective(cells)
    return f"{op}, single program", size


def _over_network(cells: Cells) -> tuple[str, str]:
    op, size = _collective(cells)
    return f"{op} over {cells['network']}", size


def _matmul(cells: Cells) -> tuple[str, str]:
    short = float(cells[MEASURED]) < SHORT_MICROSECONDS
    words = "single kernel" if "software" in cells else "with a part of its launch"
    return (
        f"matmul {cells['types']}, {words}",
        "below 20 us" if short else "20 us and more",
    )


def _on_rows(
    name: str,
    columns: tuple[str, ...],
    price: Callable[[Cells], float],
    sort: Callable[[Cells], tuple[str, str]],
    rows_are: str,
) -> list[ErrorSummary]:
    path = str(resources.files(lagom_jax.cost) / "measured" / name)
    table = parse_table(load_text(path), (*columns, MEASURED), path)
    errors: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for outcome in table.each(price):
        cells = outcome.cells
        # A shipped row that cannot be priced is a defect, not a user's mistake.
        assert outcome.result is not None, outcome.problem
        op, size = sort(cells)
        error = abs(outcome.result / float(cells[MEASURED]) - 1)
        gpu = cells["gpu"]
        errors[gpu, op, size].append(error)
        if name in ("collectives.csv", "nccl_alone.csv"):
            whole = "all" if name == "nccl_alone.csv" else "all, single program"
            errors[gpu, whole, size].append(error)
    return [
        ErrorSummary(
            *key, rows_are, len(e), float(np.median(e)), float(np.quantile(e, 0.9))
        )
        for key, e in errors.items()
    ]


def _kept_out() -> list[ErrorSummary]:
    found: list[ErrorSummary] = []
    for name in ("a100", "b200", "gb200", "h100", "h200", "l40s"):
        record = load_record(name)
        parts = {"all": record["errors"]}
        kinds = record["kinds"].items()
        parts |= {kind: item["errors"] for kind, item in kinds if "errors" in item}
        for op, errors in parts.items():
            for rows_are, sizes in errors.items():
                if rows_are not in _OF_THE_FIT:
                    found += [
                        ErrorSummary(record["measured"], op, size, rows_are, **figures)
                        for size, figures in sizes.items()
                    ]
    return found


def _matmuls_kept_out() -> list[ErrorSummary]:
    found: list[ErrorSummary] = []
    for name in ("a100", "b200", "gb200", "h100", "h200", "l40s"):
        for rate, item in load_matmul_record(name)["matmuls"].items():
            for rows_are, sizes in item.get("errors", {}).items():
                if rows_are != FITTED:
                    found += [
                        ErrorSummary(name, f"matmul {rate}", size, rows_are, **figures)
                        for size, figures in sizes.items()
                    ]
    return found
