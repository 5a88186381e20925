"""Rows of measurements as CSV: read with line numbers, priced, written back."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from lagom_jax.errors import LagomError

PREDICTED = "predicted_microseconds"


class TableError(LagomError):
    """A table that cannot be read at all."""


class RowError(LagomError):
    """A row that says something impossible; the others are still read."""


Cells = dict[str, str]


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one row: its microseconds, or what is wrong with it."""

    line: int
    cells: Cells
    microseconds: float | None
    problem: str = ""


def read_table(path: str, needed: Iterable[str]) -> tuple[list[str], list[tuple]]:
    """The columns of a CSV file and its rows with their line numbers.

    Args:
        path: The file.
        needed: Columns that it must have; it may have others.

    Raises:
        TableError: The file cannot be read, or lacks a column.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise TableError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TableError(f"{path} is not a text file") from None
    reader = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    columns = [name.strip() for name in reader.fieldnames or []]
    reader.fieldnames = columns
    missing = [name for name in needed if name not in columns]
    if missing:
        raise TableError(
            f"{path} has no column {', '.join(missing)}; its first line must name "
            f"{', '.join(needed)}"
        )
    return columns, [(reader.line_num, row) for row in reader]


def predict_rows(
    rows: Iterable[tuple], price: Callable[[Cells], float]
) -> Iterator[Outcome]:
    """Prices rows one by one; a bad row does not stop the others."""
    for line, cells in rows:
        if None in cells or None in cells.values():
            yield Outcome(line, {}, None, "has too many or too few columns")
            continue
        try:
            yield Outcome(line, cells, price(cells))
        except LagomError as error:
            yield Outcome(line, cells, None, str(error))


def write_table(columns: list[str], outcomes: Iterable[Outcome]) -> str:
    """The rows that could be priced, with the prediction as last column.

    Example:
        >>> print(write_table(["m"], [Outcome(2, {"m": "4"}, 1.25)]), end="")
        m,predicted_microseconds
        4,1.250
    """
    kept = [name for name in columns if name != PREDICTED]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*kept, PREDICTED])
    for outcome in outcomes:
        if outcome.microseconds is not None:
            cells = [outcome.cells[name] for name in kept]
            writer.writerow([*cells, f"{outcome.microseconds:.3f}"])
    return out.getvalue()


def whole(cells: Cells, column: str, least: int = 1) -> int:
    """A whole number from a row.

    Raises:
        RowError: It is none, or less than `least`.

    Example:
        >>> whole({"m": "128"}, "m")
        128
    """
    text = cells[column].strip()
    try:
        value = int(text)
    except ValueError:
        raise RowError(f"{column} is {text!r}, not a whole number") from None
    if not least <= value < 1 << 62:
        raise RowError(f"{column} is {value}; it must be {least} or more")
    return value
