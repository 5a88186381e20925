"""`lagom predict`: the model's figures for rows of a table, or for a program."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import io
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lagom_jax.api import analyze_dump
from lagom_jax.commands import VERBS
from lagom_jax.commands.beside import CONTENTION_COLUMNS, predicted_slowdown
from lagom_jax.commands.rows import (
    collective_microseconds,
    estimated,
    matmul_microseconds,
)
from lagom_jax.commands.terminal import writing
from lagom_jax.errors import LagomError
from lagom_jax.measurements.rows import COLLECTIVE_COLUMNS, MATMUL_COLUMNS
from lagom_jax.measurements.table import (
    Cells,
    Outcome,
    RowError,
    Table,
    load_text,
    parse_table,
)

BAD_ROWS = 5
"""Exit code when some rows could not be predicted."""
PROBLEM = "prediction_problem"
"""The column that says why a row has no prediction; only where a row has none."""

_PARTS = (
    "program",
    "cluster",
    "devices",
    "pricing",
    "step_seconds",
    "compute_seconds",
    "exposed_seconds",
    "waiting_seconds",
    "communication_seconds",
)


@dataclasses.dataclass(frozen=True, slots=True)
class _Predicted:
    """Kinds of predictions for the rows of a table."""

    needed: tuple[str, ...]
    price: Callable[[Cells], float]
    column: str = "predicted_microseconds"


_TABLES = {
    "collectives": _Predicted(COLLECTIVE_COLUMNS, collective_microseconds),
    "matmuls": _Predicted(MATMUL_COLUMNS, matmul_microseconds),
    "contention": _Predicted(
        CONTENTION_COLUMNS, predicted_slowdown, "predicted_slowdown"
    ),
}


def add(verbs: Any) -> None:
    """Declares the verb."""
    verb = verbs.add_parser(
        "predict",
        help=VERBS["predict"],
        description="Prints what the model predicts: for the rows of a table, or for "
        "a program that XLA dumped. Formats: docs/explanation/validation.md.",
    )
    kinds = verb.add_subparsers(title="what", metavar="WHAT", required=True)
    for name, what in _TABLES.items():
        table = kinds.add_parser(
            name,
            help=f"the rows of a CSV file, with {name} to predict",
            description=f"Writes the rows again with a column {what.column}. "
            f"The columns {', '.join(what.needed)} are needed, others are kept. If "
            f"some rows cannot be predicted, a column {PROBLEM} before it says why, "
            f"and the exit code is {BAD_ROWS}.",
        )
        table.add_argument("table", metavar="IN.csv")
        table.add_argument("--output", metavar="FILE", help="instead of printing")
        table.set_defaults(run=_run_table, what=name)
    program = kinds.add_parser(
        "program",
        help="a dumped program, as JSON",
        description="Prints one JSON object with step_seconds and its parts.",
    )
    program.add_argument("dump", help="what XLA dumped, as `lagom report` takes it")
    program.add_argument("--cluster", required=True, help="such as h100:8x8")
    program.set_defaults(run=_run_program)


def _run_table(arguments: argparse.Namespace) -> int:
    what = _TABLES[arguments.what]
    table = parse_table(load_text(arguments.table), what.needed, arguments.table)
    outcomes = table.each(lambda cells: _sound(what.price(cells)))
    text = _written(table, outcomes, what.column)
    if arguments.output:
        try:
            Path(arguments.output).write_text(text, encoding="utf-8")
        except OSError as error:
            raise LagomError(
                f"cannot write {arguments.output}: {error.strerror}"
            ) from None
    else:
        with writing():
            sys.stdout.write(text)
    if arguments.what == "collectives":
        done = {o.cells["gpu"].strip() for o in outcomes if not o.problem}
        for why in filter(None, map(estimated, sorted(done))):
            _complain(f"estimated: {why}")
    bad = [outcome for outcome in outcomes if outcome.problem]
    for outcome in bad:
        _complain(f"{arguments.table}, line {outcome.line}: {outcome.problem}")
    if bad:
        _complain(f"{len(bad)} of {len(outcomes)} rows could not be predicted")
    return BAD_ROWS if bad else 0


def _written(table: Table, outcomes: list[Outcome[float]], predicted: str) -> str:
    """All rows, with the prediction as last column, before it the problem with some."""
    bad = any(outcome.problem for outcome in outcomes)
    own = (PROBLEM, predicted) if bad else (predicted,)
    kept = [
        place
        for place, name in enumerate(table.columns)
        if name not in (PROBLEM, predicted)
    ]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*(table.columns[place] for place in kept), *own])
    for (_, row), outcome in zip(table.rows, outcomes, strict=True):
        cells = table.filled(row)
        figure = "" if outcome.result is None else f"{outcome.result:.3f}"
        more = [outcome.problem, figure] if bad else [figure]
        writer.writerow([*(cells[place] for place in kept), *more])
    return out.getvalue()


def _sound(figure: float) -> float:
    """A prediction that can be one.

    Raises:
        RowError: The row is beyond what the model can say.
    """
    if not 0 < figure < math.inf:
        raise RowError("is beyond what can be predicted")
    return figure


def _run_program(arguments: argparse.Namespace) -> int:
    report = dataclasses.asdict(analyze_dump(arguments.dump, arguments.cluster))
    document = {key: report[key] for key in _PARTS}
    with writing():
        print(json.dumps(document, indent=2, allow_nan=False))
    return 0


def _complain(text: str) -> None:
    print(f"lagom: {text}", file=sys.stderr)
