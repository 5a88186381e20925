"""`lagom predict`: the model's figures for rows of a table, or for a program."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lagom_jax.analysis import analyze_dump
from lagom_jax.commands.rows import (
    COLLECTIVE_COLUMNS,
    MATMUL_COLUMNS,
    collective_microseconds,
    estimated,
    matmul_microseconds,
)
from lagom_jax.commands.table_rows import (
    Cells,
    TableError,
    predict_rows,
    read_table,
    write_table,
)

BAD_ROWS = 5
"""Exit code when some rows could not be predicted."""

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
_TABLES: dict[str, tuple[tuple[str, ...], Callable[[Cells], float]]] = {
    "collectives": (COLLECTIVE_COLUMNS, collective_microseconds),
    "matmuls": (MATMUL_COLUMNS, matmul_microseconds),
}


def add(verbs: Any) -> None:
    """Declares the verb."""
    verb = verbs.add_parser(
        "predict",
        help="predict times of collectives, matmuls or a program",
        description="Prints what the model predicts: for the rows of a table, or for "
        "a program that XLA dumped. Formats: docs/validation.md.",
    )
    kinds = verb.add_subparsers(title="what", metavar="WHAT", required=True)
    for name, (columns, _) in _TABLES.items():
        table = kinds.add_parser(
            name,
            help=f"the rows of a CSV file, with {name} to predict",
            description="Writes the rows again with a column predicted_microseconds. "
            f"The columns {', '.join(columns)} are needed, others are kept. Exits with "
            f"{BAD_ROWS} if some rows could not be predicted.",
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
    needed, price = _TABLES[arguments.what]
    columns, rows = read_table(arguments.table, needed)
    outcomes = list(predict_rows(rows, price))
    text = write_table(columns, outcomes)
    if arguments.output:
        try:
            Path(arguments.output).write_text(text, encoding="utf-8")
        except OSError as error:
            raise TableError(
                f"cannot write {arguments.output}: {error.strerror}"
            ) from None
    else:
        sys.stdout.write(text)
    if arguments.what == "collectives":
        done = {o.cells["gpu"].strip() for o in outcomes if o.microseconds is not None}
        for why in filter(None, map(estimated, sorted(done))):
            _complain(f"estimated: {why}")
    bad = [outcome for outcome in outcomes if outcome.microseconds is None]
    for outcome in bad:
        _complain(f"{arguments.table}, line {outcome.line}: {outcome.problem}")
    if bad:
        _complain(f"{len(bad)} of {len(outcomes)} rows could not be predicted")
    return BAD_ROWS if bad else 0


def _run_program(arguments: argparse.Namespace) -> int:
    report = dataclasses.asdict(analyze_dump(arguments.dump, arguments.cluster))
    print(json.dumps({key: report[key] for key in _PARTS}, indent=2, allow_nan=False))
    return 0


def _complain(text: str) -> None:
    print(f"lagom: {text}", file=sys.stderr)
