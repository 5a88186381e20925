"""The regret of a decision, as one figure: what it costs that the truth is not known.

By one model it is how much longer a step takes than with the best decision by that
model, as a share of the latter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

WORST_REGRET: Final = 0.03
"""The share of a step up to which the worst regret counts no more than any other."""


def regretted(by_model: Sequence[float]) -> float:
    """Regret on average, and once more what the worst is beyond `WORST_REGRET`.

    Args:
        by_model: Regret by each model of an ensemble; none is no regret.

    Example:
        >>> regretted([0.0, 0.02]), round(regretted([0.0, 0.07]), 3)
        (0.01, 0.075)
    """
    if not by_model:
        return 0.0
    mean = sum(by_model) / len(by_model)
    return mean + max(0.0, max(by_model) - WORST_REGRET)


def regrets(times: Sequence[Sequence[float]]) -> list[tuple[float, ...]]:
    """Regret of each of some decisions by each model, beside the best of them.

    Args:
        times: Of each decision its times by each model, in the same order for all.

    Example:
        >>> regrets([(1.0, 3.0), (2.0, 2.0)])
        [(0.0, 0.5), (1.0, 0.0)]
    """
    least = [min(by_model) for by_model in zip(*times, strict=True)]
    return [regrets_beside(by_model, least) for by_model in times]


def regrets_beside(times: Sequence[float], least: Sequence[float]) -> tuple[float, ...]:
    """Regret of a decision by each model, beside the least that a step can take.

    Args:
        times: Of the decision, by each model.
        least: By the same models, with the best decision by each.

    Example:
        >>> regrets_beside((3.0, 2.0), (2.0, 2.0))
        (0.5, 0.0)
    """
    pairs = zip(times, least, strict=True)
    return tuple(own / best - 1 if best else 0.0 for own, best in pairs)
