"""Parameters of the search for an order, with the reason for each."""

from __future__ import annotations

import dataclasses
from typing import Final


@dataclasses.dataclass(frozen=True, slots=True)
class SearchParameters:
    """Sizes of steps, shares of the evaluations, and thresholds."""

    # What is an improvement.
    worth: float = 1e-6
    """Shares of the time below this are no improvement, but rounding."""
    worth_of_streams: float = 1e-3
    """The least share of the step for which a second stream is used: it takes SMs that
    the model only estimates."""

    # Places that are tried for a unit.
    stride: float = 1.6
    """Each place is so many times as far away as the one before: near places matter
    one by one, far ones by their region."""
    reach: int = 96
    """Units with something to do that a shift may pass: a few layers."""
    near: int = 16
    """The same for each end where both ends of a collective move: pairs of places."""
    heavy: float = 0.01
    """Kernels with less than this share of the time are not moved for themselves: what
    they hide is hidden as well by moving the collective."""
    together: int = 2
    """A setting of so many collectives moves together with any of them. One of more is
    a move by itself: what is good for one of them is not for all."""
    noticed: int = 4
    """Units so far from a changed stretch are looked at again."""

    # Random changes around the best.
    perturbations: int = 3
    """So many at most at a time; more lead back to the beginning."""
    in_vain: int = 50
    """For each collective and heavy kernel so many in a row that lead to nothing but
    what was seen before end a search: a small step has no more orders."""
    short_rounds: int = 2
    """After them only so many kinds of moves are made, unless they lead below the
    best: most do not, and the larger moves cost most."""

    # Starts, and what goes to each.
    paces: tuple[float, ...] = (1.0, 1.5, 2.5)
    """Multiples of the fastest time that a collective may take, where orders with busy
    streams begin: slower ones take less from kernels and need more room."""
    per_start: int = 10_000
    """Evaluations below which another start is not worth its while: one search that
    comes to its end beats several that do not."""
    first_look: float = 0.5
    """The share of the evaluations for several starts; the others are spent near the
    best of what these find."""
    compared: int = 3
    """With as many starts for each, a search with one stream is compared to that with
    two: searches that do not come to their ends say nothing about which is better."""
    rounds: int = 2
    """Parts in which the rest is spent; each goes on from the better of the two."""
    refining: float = 0.25
    """Evaluations of finer controls, beside those of coarser ones, which come to their
    own end first: a quarter finds what there is near that end, and another quarter
    gained at most 0.05 % on three compiled steps."""


PARAMETERS: Final = SearchParameters()
"""Those that are used if nothing else is said."""
