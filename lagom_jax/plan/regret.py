"""The regret of a decision, as one figure: what it costs that the truth is not known.

By one model it is how much longer a step takes than with the best decision by that
model, as a share of the latter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

WORST_REGRET: Final = 0.03
"""The bound of the worst regret, as a share of a step: within it none counts more than
any other."""
_BEYOND: Final = 1.0
"""The penalty of a worst beyond the bound: more than any regret within it."""


def regretted(by_model: Sequence[float]) -> float:
    """Regret on average; where the worst is beyond the bound, a figure above all that.

    Of what is beyond the bound the figure is less the closer the worst is to it.

    Args:
        by_model: Regret by each model of an ensemble; none is no regret.

    Example:
        >>> regretted([0.0, 0.02]), round(regretted([0.0, 0.07]), 3)
        (0.01, 1.075)
    """
    if not by_model:
        return 0.0
    mean, beyond = sum(by_model) / len(by_model), max(by_model) - WORST_REGRET
    return mean + beyond + _BEYOND if beyond > 0.0 else mean


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
