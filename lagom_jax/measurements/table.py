"""Tables as CSV: columns by name, rows with their line numbers, whatever is in them."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

from lagom_jax.errors import LagomError, MeasurementError

Cells: TypeAlias = Mapping[str, str]
Row = TypeVar("Row")
# Words of a cell that says nothing.
_NOT_KNOWN = frozenset({"-", "?", "n/a", "na", "nan", "none", "null", "unknown"})


class RowError(LagomError):
    """A row that says something impossible; the others are still read."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome(Generic[Row]):
    """The result of one row, or the problem with it."""

    line: int
    """Its number in the file."""
    cells: Cells
    """Text by column; empty where the row has fewer cells than columns."""
    result: Row | None
    problem: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """A file of rows."""

    columns: tuple[str, ...]
    rows: tuple[tuple[int, tuple[str, ...]], ...]
    """Line numbers and cells."""

    def filled(self, row: tuple[str, ...]) -> tuple[str, ...]:
        """A row with as many cells as there are columns.

        Args:
            row: Its cells; further ones are dropped, and missing ones empty.
        """
        missing = len(self.columns) - len(row)
        return (*row[: len(self.columns)], *[""] * missing)

    def each(self, read: Callable[[Cells], Row]) -> list[Outcome[Row]]:
        r"""Applies a function to every row; a bad row does not stop the others.

        Args:
            read: Raises a LagomError where a row says something impossible.

        Example:
            >>> table = parse_table("m,n\n1,2\nx,2\n1\n", ["m"])
            >>> for outcome in table.each(lambda cells: whole(cells, "m")):
            ...     print(outcome.line, outcome.result, outcome.problem)
            2 1
            3 None m is 'x', not a whole number
            4 None has too many or too few columns
        """
        return [self._outcome(line, row, read) for line, row in self.rows]

    def _outcome(
        self, line: int, row: tuple[str, ...], read: Callable[[Cells], Row]
    ) -> Outcome[Row]:
        cells = dict(zip(self.columns, self.filled(row), strict=True))
        if len(row) < len(self.columns) or any(row[len(self.columns) :]):
            return Outcome(line, cells, None, "has too many or too few columns")
        try:
            return Outcome(line, cells, read(cells))
        except LagomError as error:
            return Outcome(line, cells, None, str(error))


def load_text(path: str | Path) -> str:
    """The contents of a text file.

    Raises:
        MeasurementError: It cannot be read.
    """
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise MeasurementError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise MeasurementError(f"{path} is not a text file") from None


def parse_table(
    text: str, needed: Sequence[str], origin: str | Path = "the table"
) -> Table:
    r"""Reads CSV.

    Args:
        text: Its first line names the columns.
        needed: Columns that it must have; it may have others.
        origin: The name of the file, for messages.

    Raises:
        MeasurementError: A column is missing, or it is no CSV.

    Example:
        >>> parse_table("gpu, m\nh100, 128\n", ["m"]).rows
        ((2, ('h100', '128')),)
    """
    reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True)
    try:
        rows = [(reader.line_num, tuple(row)) for row in reader if row]
    except csv.Error as error:
        raise MeasurementError(f"{origin}, line {reader.line_num}: {error}") from None
    columns = tuple(name.strip() for name in rows[0][1]) if rows else ()
    missing = [name for name in needed if name not in columns]
    if missing:
        raise MeasurementError(
            f"{origin} has no column {', '.join(missing)}; its first line must name "
            f"{', '.join(needed)}"
        )
    return Table(columns, tuple(rows[1:]))


def given(cells: Cells, column: str) -> str:
    """A cell's text; empty where the row lacks the column or says that nobody knows.

    Example:
        >>> given({"nccl": " 2.28.9 "}, "nccl")
        '2.28.9'
        >>> given({"nccl": "N/A"}, "nccl"), given({}, "nccl")
        ('', '')
    """
    text = cells.get(column, "").strip()
    return "" if text.lower() in _NOT_KNOWN else text


def whole(cells: Cells, column: str, least: int = 1) -> int:
    """A whole number from a row, also as tables with gaps write it: `128.0`.

    Raises:
        RowError: It is none, or less than `least`.

    Example:
        >>> whole({"m": "128"}, "m"), whole({"m": "128.0"}, "m")
        (128, 128)
    """
    text = cells.get(column, "").strip()
    try:
        value = int(text) if text.lstrip("+-").isdecimal() else float(text)
        if value != int(value):
            raise ValueError
        value = int(value)
    except (ValueError, OverflowError):
        raise RowError(f"{column} is {text!r}, not a whole number") from None
    if not least <= value < 1 << 62:
        raise RowError(f"{column} is {value}; it must be {least} or more")
    return value
