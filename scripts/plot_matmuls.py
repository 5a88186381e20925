"""Draws the model of matmuls against the measurements, as docs/explanation/matmuls.svg.

    python scripts/plot_matmuls.py

Every row is predicted by a fit that has not seen its shape.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("svg")
from fit_matmuls import DISTRUSTED, all_rows, fit, kept_out, times
from matplotlib import pyplot as plt

COLUMNS = 3
TO = Path(__file__).parent.parent / "docs" / "explanation" / "matmuls.svg"


def main() -> None:
    mpl.rcParams["svg.hashsalt"] = "lagom_jax"
    shown = [
        rows for rows in all_rows()[0] if (rows.gpu.name, rows.rate) not in DISTRUSTED
    ]
    down = -(-len(shown) // COLUMNS)
    figure, axes = plt.subplots(
        *(down, COLUMNS),
        figsize=(3 * COLUMNS, 2.8 * down),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for axis in axes.flat[len(shown) :]:
        axis.remove()
    for axis, rows in zip(axes.flat, shown, strict=False):
        _, part = next(kept_out(rows))
        measured = np.exp(rows.log_seconds)
        found = np.zeros(len(rows))
        for out in np.unique(part):
            there = part == out
            constants = fit(rows.where(~there))
            found[there] = times(rows.where(there), constants)
        axis.axhspan(0.75, 1.25, color="0.93")
        axis.axhline(1, color="0.6", linewidth=0.8)
        # Thousands of marks are smaller as a picture than as shapes.
        axis.scatter(measured * 1e6, found / measured, s=3, rasterized=True)
        axis.set(
            xscale="log",
            ylim=(0.4, 1.8),
            title=f"{rows.gpu.name} {rows.rate}, {len(rows)} rows",
            xlabel="measured, microseconds",
        )
    for first in axes[:, 0]:
        first.set_ylabel("predicted / measured")
    TO.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(TO, dpi=120, metadata={"Date": None})
    print(f"wrote {TO}")


if __name__ == "__main__":
    main()
