"""Smooth corrections of a form: a Gaussian process with a Matern kernel.

Part of `fit_collectives.py`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np

# Correlation of what one protocol's form leaves with what another's does.
BETWEEN_PROTOCOLS = 0.5
# Octaves of bytes and of ranks over which a version's own part varies.
VERSION_OCTAVES = 5.0, 3.0


@dataclasses.dataclass(frozen=True)
class Smoothness:
    """Of the correction: how much it varies, and over how many octaves."""

    together: float
    """Standard deviation of the part that all group sizes share."""
    apart: float
    """Standard deviation of the part that may differ between them."""
    octaves_of_bytes: float
    octaves_of_ranks: float
    slant: float
    """0: similar where the bytes are, 1: where the bytes per rank are."""
    between_versions: float = 0.1
    """Standard deviation of what a version of NCCL, or a twin, has for itself."""


@dataclasses.dataclass(frozen=True)
class Residuals:
    """What a form leaves: logs of measured over form."""

    nbytes: np.ndarray
    ranks: np.ndarray
    logs: np.ndarray
    noise: np.ndarray
    protocol: np.ndarray
    """Its place in `PROTOCOLS`."""
    series: np.ndarray
    """Version of NCCL, negative for a twin's."""

    def __getitem__(self, chosen: np.ndarray) -> Residuals:
        fields = dataclasses.fields(self)
        return Residuals(*(getattr(self, f.name)[chosen] for f in fields))


def _matern(distance: np.ndarray) -> np.ndarray:
    scaled = math.sqrt(3) * np.abs(distance)
    return (1 + scaled) * np.exp(-scaled)


def told_apart(ranks: np.ndarray, of_series: np.ndarray) -> bool:
    """True if a group size was measured in several series, not each with its own."""
    return any(len(set(of_series[ranks == n])) > 1 for n in set(ranks))


def smooth(
    seen: Residuals, how: Smoothness
) -> Callable[[np.ndarray, np.ndarray, int, int | np.ndarray], np.ndarray]:
    """A smooth function of bytes, ranks, protocol and series through what is left."""
    apart = how.between_versions if told_apart(seen.ranks, seen.series) else 0.0

    def place(nbytes: np.ndarray, ranks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.log2(nbytes) - how.slant * np.log2(ranks), np.log2(ranks)

    here = place(seen.nbytes, seen.ranks)

    def kernel(
        there: tuple[np.ndarray, np.ndarray],
        protocol: np.ndarray,
        of_series: np.ndarray,
    ) -> np.ndarray:
        along = _matern((there[0][:, None] - here[0]) / how.octaves_of_bytes)
        across = _matern((there[1][:, None] - here[1]) / how.octaves_of_ranks)
        same = protocol[:, None] == seen.protocol
        between = np.where(same, 1.0, BETWEEN_PROTOCOLS)
        shared = between * along * (how.together**2 + how.apart**2 * across)
        same = of_series[:, None] == seen.series
        over_bytes, over_ranks = (
            _matern((place[:, None] - known) / octaves)
            for place, known, octaves in zip(there, here, VERSION_OCTAVES, strict=True)
        )
        return shared + apart**2 * same * over_bytes * (1 + over_ranks) / 2

    base = seen.noise
    scale, among = base, kernel(here, seen.protocol, seen.series)
    weights = np.zeros(len(base))
    for _ in range(10):
        weights = np.linalg.solve(among + np.diag(scale**2), seen.logs)
        off = np.abs(seen.logs - among @ weights)
        scale = np.minimum(base * np.sqrt(np.maximum(1, off / base / 1.5)), base * 10)

    def found(
        nbytes: np.ndarray,
        ranks: np.ndarray,
        protocol: int,
        of_series: int | np.ndarray,
    ) -> np.ndarray:
        which = np.full(len(nbytes), protocol)
        whose = np.broadcast_to(of_series, len(nbytes))
        return kernel(place(nbytes, ranks), which, whose) @ weights

    return found
