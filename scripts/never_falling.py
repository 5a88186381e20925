"""Corrections of a form under which more bytes never take less time.

Part of `fit_collectives.py`.
"""

from __future__ import annotations

import math

import numpy as np
from fit_scores import LARGE

from lagom_jax.cost.structure import Streamed


def never_falling(
    kind: str,
    form: Streamed,
    row: np.ndarray,
    sizes: np.ndarray,
    ranks: int,
    peak: float,
    protocol: str,
) -> np.ndarray:
    """Keeps the correction from falling faster than the form rises.

    The nearest such correction: knots that fall too fast meet at their mean, in which
    those that are known better count more.
    """

    def log_time(size: float) -> float:
        return math.log(sum(form.parted(kind, size, ranks, peak, protocol)))

    rise = [(log_time(s * 1.001) - log_time(s)) / math.log2(1.001) for s in sizes[:-1]]
    # The form's slope grows with the bytes, so its least is at the left knot; a little
    # is left for the rounding of the table.
    risen = np.concatenate([[0.0], np.cumsum(np.maximum(0.0, np.array(rise) - 2e-4))])
    weights = np.where(sizes >= LARGE, 4.0, 1.0)
    return _rising(row + risen, weights) - risen


def _rising(heights: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The nearest heights that nowhere fall: neighbours that do are pooled."""
    pools: list[tuple[float, float, int]] = []
    for height, weight in zip(heights, weights, strict=True):
        mean, total, number = float(height), float(weight), 1
        while pools and pools[-1][0] > mean:
            other, heavy, more = pools.pop()
            mean = (mean * total + other * heavy) / (total + heavy)
            total, number = total + heavy, number + more
        pools.append((mean, total, number))
    return np.concatenate([np.full(number, mean) for mean, _, number in pools])
