"""Decisions among finished candidates by what each could cost: its regret.

By every model of an ensemble a candidate's regret is how much longer its step takes
than that of the best candidate by that model. The candidate with the least regret on
average wins, of those whose worst is within a bound. Where what it gives over the
program as it is drowns in what nobody knows, nothing is changed; where what it may cost
beside a simpler one weighs more than what it gives, the simpler one wins.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from lagom_jax.plan.interval import SAME, drowns, outweighed
from lagom_jax.plan.regret import WORST_REGRET, regrets, regrets_beside, regretted


@dataclasses.dataclass(frozen=True, slots=True)
class Scored:
    """A candidate's times."""

    seconds: float
    """By the likeliest model."""
    by_model: tuple[float, ...]
    """By each of the others, in the same order for all candidates."""
    parts: int
    """Things that it changes: of two that are alike, the one with fewer is simpler."""

    def is_better_than(self, other: Scored) -> bool:
        """True if it gives something that does not drown.

        Example:
            >>> one, other = Scored(1.0, (1.0, 2.0), 1), Scored(1.5, (2.0, 2.0), 0)
            >>> one.is_better_than(other), other.is_better_than(one)
            (True, False)
        """
        if not self.by_model:
            return self.seconds < other.seconds * (1 - SAME)
        return not drowns(self._gains(other), other.seconds)

    def is_worth_more_than(self, other: Scored) -> bool:
        """True if what it gives weighs more than what it may cost.

        Example:
            >>> plain, one = Scored(2.0, (2.0,) * 3, 1), Scored(1.7, (1.6, 1.6, 2.1), 2)
            >>> one.is_better_than(plain), one.is_worth_more_than(plain)
            (False, True)
        """
        if not self.by_model or not other.parts:
            return self.is_better_than(other)
        return not outweighed(self._gains(other), other.seconds)

    def _gains(self, other: Scored) -> list[float]:
        pairs = zip(self.by_model, other.by_model, strict=True)
        return [theirs - own for own, theirs in pairs]


def nowhere_behind(one: Scored, other: Scored) -> bool:
    """True if by no model one takes longer than the other.

    Example:
        >>> steady = Scored(1.0, (1.0, 1.0), 0)
        >>> nowhere_behind(Scored(0.9, (0.8, 1.0), 1), steady)
        True
        >>> nowhere_behind(Scored(0.9, (0.8, 1.1), 1), steady)
        False
    """
    pairs = zip(one.by_model, other.by_model, strict=True)
    return one.seconds <= other.seconds and all(own <= theirs for own, theirs in pairs)


def beyond_bound(
    one: Scored, others: Sequence[Scored]
) -> tuple[tuple[int, ...], Scored]:
    """Models by which the regret of a candidate is beyond the bound, by most first.

    Args:
        one: The candidate.
        others: All that could be taken in its place.

    Returns:
        Places of the models, and the times with which they would be content. Beside
        what a model would choose by itself regret is up to twice what it seems.

    Example:
        >>> one = Scored(1.0, (1.0, 1.1, 1.2), 1)
        >>> beyond_bound(one, [Scored(1.0, (1.3, 1.0, 1.0), 1)])
        ((2, 1), Scored(seconds=1.0, by_model=(1.015, 1.015, 1.015), parts=1))
    """
    times = [candidate.by_model for candidate in (one, *others)]
    least = [min(by_model) for by_model in zip(*times, strict=True)]
    found = regrets_beside(one.by_model, least)
    models = [place for place, regret in enumerate(found) if regret > WORST_REGRET]
    models.sort(key=lambda place: -found[place])
    content = tuple((1 + WORST_REGRET / 2) * seconds for seconds in least)
    return tuple(models), dataclasses.replace(one, by_model=content)


def least_regret(candidates: Sequence[Scored]) -> int:
    """The place of the candidate to take.

    Args:
        candidates: At least one, all timed by the same models.

    Example:
        What one model of three calls a loss is no gain to rely on:

        >>> simple = Scored(2.0, (2.0, 2.0, 2.0), 0)
        >>> least_regret([simple, Scored(1.9, (1.8, 2.1, 1.9), 1)])
        0
        >>> least_regret([simple, Scored(1.9, (1.9, 1.8, 1.9), 1)])
        1
    """
    found = [regretted(one) for one in regrets([c.by_model for c in candidates])]
    places = range(len(candidates))

    # Each has to be worth it over all simpler ones that are worth it themselves.
    worth: list[int] = []
    for place in sorted(places, key=lambda p: (candidates[p].parts, found[p])):
        simpler = (p for p in worth if candidates[p].parts < candidates[place].parts)
        if all(candidates[place].is_worth_more_than(candidates[p]) for p in simpler):
            worth.append(place)
    return min(
        worth, key=lambda p: (found[p], candidates[p].seconds, candidates[p].parts)
    )
