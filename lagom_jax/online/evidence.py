"""A sequential test: looked at after every few steps, and wrong as rarely as stated.

Who looks at a usual test again and again finds something in the end. This one holds
whenever it is looked at: a mixture over all gains (Robbins' bound) is asked how much
likelier than no gain it has become, and by Ville's inequality that is above `1 / error`
with a probability of at most `error`, however long one looks.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Final

from lagom_jax.online.steps import MeasuredBeside

USUAL_GAIN: Final = 0.02
"""The share of a step around which gains are looked for; it costs power, not errors."""
# What lies farther from nothing than this counts as if it lay here: one outlier among
# few steps is no proof.
_CLIPPED: Final = 3.0


@dataclasses.dataclass(frozen=True, slots=True)
class Comparisons:
    """Comparisons of one candidate with another, added up.

    Example:
        >>> gains = MeasuredBeside(1, 0, -0.05, 1e-4, 0.01, 2)
        >>> found = Comparisons().with_(gains)
        >>> found.proves_faster(0.01)
        False
        >>> found.with_(gains).with_(gains).proves_faster(0.01)
        True
    """

    information: float = 0.0
    """The sum of one over the variances."""
    score: float = 0.0
    """The sum of logarithms of ratios over their variances, clipped."""
    total: float = 0.0
    """The same sum, of what was measured."""
    steps: int = 0

    @property
    def log_ratio(self) -> float:
        """The measured logarithm of the candidate's time over the other's."""
        return self.total / self.information if self.information else 0.0

    @property
    def sigma(self) -> float:
        """Its standard deviation."""
        return 1 / math.sqrt(self.information) if self.information else math.inf

    def with_(self, seen: MeasuredBeside, *, turned: bool = False) -> Comparisons:
        """With one more comparison.

        Args:
            seen: The comparison.
            turned: True where the two have changed places.
        """
        sigma = math.sqrt(seen.variance)
        ratio = -seen.log_ratio if turned else seen.log_ratio
        clipped = max(-_CLIPPED * sigma, min(_CLIPPED * sigma, ratio))
        return Comparisons(
            self.information + 1 / seen.variance,
            self.score + clipped / seen.variance,
            self.total + ratio / seen.variance,
            self.steps + seen.steps,
        )

    def proves_faster(self, error: float) -> bool:
        """True if the candidate is faster; wrong with this probability at most."""
        return -self.score > self._bound(error)

    def proves_slower(self, error: float) -> bool:
        """True if it is slower, likewise."""
        return self.score > self._bound(error)

    def _bound(self, error: float) -> float:
        rest = 1 / USUAL_GAIN**2
        total = self.information + rest
        return math.sqrt(total * (math.log(total / rest) + 2 * math.log(1 / error)))


NOTHING_COMPARED: Final = Comparisons()
"""The evidence before anything was compared."""
