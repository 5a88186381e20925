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

TO = Path(__file__).parent.parent / "docs" / "explanation" / "matmuls.svg"


def main() -> None:
    mpl.rcParams["svg.hashsalt"] = "lagom_jax"
    shown = [
        rows for rows in all_rows()[0] if (rows.gpu.name, rows.rate) not in DISTRUSTED
    ]
    figure, axes = plt.subplots(
        1, len(shown), figsize=(3 * len(shown), 3.2), sharey=True, layout="constrained"
    )
    for axis, rows in zip(axes, shown, strict=True):
        _, part = next(kept_out(rows))
        measured = np.exp(rows.log_seconds)
        found = np.zeros(len(rows))
        for out in np.unique(part):
            there = part == out
            constants = fit(rows.where(~there))
            found[there] = times(rows.where(there), constants)
        axis.axhspan(0.75, 1.25, color="0.93")
        axis.axhline(1, color="0.6", linewidth=0.8)
        axis.scatter(measured * 1e6, found / measured, s=6)
        axis.set(
            xscale="log",
            ylim=(0.4, 1.8),
            title=f"{rows.gpu.name} {rows.rate}, {len(rows)} rows",
            xlabel="measured, microseconds",
        )
    axes[0].set_ylabel("predicted / measured")
    TO.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(TO, metadata={"Date": None})
    print(f"wrote {TO}")


if __name__ == "__main__":
    main()
