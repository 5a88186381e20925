"""Random numbers for an ensemble: the same in every process, and spread evenly.

What is drawn is named, and each name has a stream of numbers of its own, one for each
member. They are stratified: of twenty members each has another twentieth of the
distribution, so that few members already fill a range. Which member has which is
shuffled, name by name, so that two names have nothing to do with each other.
"""

from __future__ import annotations

import functools
import random
import statistics
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class Draws:
    """The numbers of one ensemble.

    Example:
        >>> draws = Draws(4)
        >>> sorted(draws.uniform("eviction"))
        [0.125, 0.375, 0.625, 0.875]
        >>> draws.uniform("eviction") == Draws(4).uniform("eviction")
        True
    """

    def __init__(self, members: int, seed: int = 0) -> None:
        """Names no number yet.

        Args:
            members: How many numbers each name has.
            seed: Another one gives another ensemble.
        """
        self.members = members
        self.seed = seed

    def uniform(self, name: str) -> tuple[float, ...]:
        """A number between 0 and 1 for each member."""
        # A generator that is seeded with a text is the same on every machine.
        shuffled = random.Random(f"{self.seed}/{name}")
        keys = [shuffled.random() for _ in range(self.members)]
        order = sorted(range(self.members), key=keys.__getitem__)
        return tuple((place + 0.5) / self.members for place in order)

    def normal(self, name: str) -> tuple[float, ...]:
        """A number of the standard normal distribution for each member.

        Example:
            >>> [round(z, 2) for z in sorted(Draws(4).normal("launch"))]
            [-1.15, -0.32, 0.32, 1.15]
        """
        quantiles = _normal_quantiles(self.members)
        return tuple(quantiles[int(u * self.members)] for u in self.uniform(name))

    def field(self, name: str, places: Sequence[float], reach: float) -> Floats:
        """A normal number for each place and member; near places have like numbers.

        Args:
            name: Of the field.
            places: Where, on an axis.
            reach: So far apart, places have nothing in common.

        Returns:
            A row for each place, a column for each member.

        Example:
            >>> rough = Draws(20).field("bytes", (0.0, 1.0, 8.0), 4.0)
            >>> rough.shape, bool(np.corrcoef(rough)[0, 1] > 0.8)
            ((3, 20), True)
        """
        at = np.asarray(places, float) / reach
        first = np.floor(at).astype(int)
        knots = {
            knot: np.array(self.normal(f"{name}[{knot}]"))
            for knot in {*first.tolist(), *(first + 1).tolist()}
        }
        rows: list[Floats] = []
        for place, knot in zip(at.tolist(), first.tolist(), strict=True):
            part = place - knot
            mixed = (1 - part) * knots[knot] + part * knots[knot + 1]
            rows.append(mixed / np.hypot(1 - part, part))
        return np.array(rows)


@functools.cache
def _normal_quantiles(members: int) -> tuple[float, ...]:
    normal = statistics.NormalDist()
    return tuple(normal.inv_cdf((place + 0.5) / members) for place in range(members))
