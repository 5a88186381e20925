"""What was predicted against what was measured, a panel for each unit and fit."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from gpu_stages.stage import Row

# What is within so much of the measured value lies in the band.
_BAND: Final = 0.1
_BEFORE, _AFTER = "predicted", "predicted, with what was fitted"


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draws all rows that the model predicts.

    Args:
        rows: At least one of them is predicted.
        path: The same rows make the same bytes there.
    """
    # Only who asks for pages needs it.
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "lagom_jax"
    from matplotlib import pyplot as plt

    panels = _panels(rows)
    figure, axes = plt.subplots(
        1,
        len(panels),
        figsize=(4.6 * len(panels), 4),
        squeeze=False,
        layout="constrained",
    )
    for axis, ((what, unit), points) in zip(axes[0], panels.items(), strict=True):
        _panel(axis, points)
        axis.set(xlabel=f"measured, {unit}", ylabel=f"{what}, {unit}")
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


_Points = list[tuple[str, float, float]]


def _panels(rows: Sequence[Row]) -> dict[tuple[str, str], _Points]:
    """By what is drawn and its unit: series, measured and predicted."""
    found: dict[tuple[str, str], _Points] = {}
    for row in sorted(rows, key=lambda row: (row.unit, row.series)):
        for what, value in ((_BEFORE, row.predicted), (_AFTER, row.fitted)):
            if value is not None:
                point = (row.series, row.measured.median, value)
                found.setdefault((what, row.unit), []).append(point)
    return found


def _panel(axis: Any, points: _Points) -> None:
    values = [value for _, *both in points for value in both if value > 0]
    ends = (min(values, default=1.0) / 1.2, max(values, default=1.0) * 1.2)
    low, high = ([end * (1 + part) for end in ends] for part in (-_BAND, _BAND))
    axis.fill_between(ends, low, high, color="0.9", linewidth=0)
    axis.plot(ends, ends, color="0.6", linewidth=0.8)
    for series, members in itertools.groupby(points, lambda point: point[0]):
        _, measured, predicted = zip(*members, strict=True)
        axis.scatter(measured, predicted, s=8, label=series)
    axis.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    axis.legend(fontsize="x-small", loc="upper left")
