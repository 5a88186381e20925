"""`lagom mesh --score`: published runs with what is predicted of them."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from typing import Final

from lagom_jax.commands.terminal import writing
from lagom_jax.errors import LagomError
from lagom_jax.measurements.table import load_text, parse_table
from lagom_jax.mesh.published_runs import RUN_COLUMNS, RunPrediction, predicted_run

BAD_ROWS: Final = 5
"""Exit code when some rows could not be predicted."""
PREDICTED: Final = (
    "predicted_step_seconds",
    "predicted_memory_bytes",
    "predicted_fits",
)
"""Columns that are appended."""


def score(runs: str, output: str | None) -> int:
    """Writes the rows of a table again, with predictions appended.

    Args:
        runs: The file with the runs.
        output: The file to write; None prints.

    Returns:
        The exit code.

    Raises:
        LagomError: A file cannot be read or written.
    """
    table = parse_table(load_text(runs), RUN_COLUMNS, runs)
    outcomes = table.each(predicted_run)
    kept = [name for name in table.columns if name not in PREDICTED]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*kept, *PREDICTED])
    for outcome in outcomes:
        cells = [outcome.cells[name] for name in kept]
        writer.writerow([*cells, *_cells(outcome.result)])
    if output:
        try:
            Path(output).write_text(out.getvalue(), encoding="utf-8")
        except OSError as error:
            raise LagomError(f"cannot write {output}: {error.strerror}") from None
    else:
        with writing():
            sys.stdout.write(out.getvalue())
    bad = [outcome for outcome in outcomes if outcome.problem]
    for outcome in bad:
        print(f"lagom: {runs}, line {outcome.line}: {outcome.problem}", file=sys.stderr)
    return BAD_ROWS if bad else 0


def _cells(known: RunPrediction | None) -> tuple[str, str, str]:
    if known is None:
        return "", "", ""
    return (
        f"{known.seconds:.6g}",
        str(known.memory_bytes),
        "true" if known.fits else "false",
    )
