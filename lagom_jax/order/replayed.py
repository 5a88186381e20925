"""Replays of the neighbours of one order, as far as they are known.

Neighbours share most of what has to be replayed. Those that begin at the same place
begin with the same units: what was replayed from there last says what comes after each.
And behind the last change all of them are the present order again: from one state at
one place it takes as long for each. Times are exact, so what is known is, to the last
bit, what would be replayed.
"""

from __future__ import annotations

import dataclasses

from lagom_jax.order.clock import StreamStates

_MOST = 200_000
"""States that are kept, some 250 bytes each."""


@dataclasses.dataclass(slots=True)
class ReplayedStretch:
    """Units with something to do, replayed from a place and the state reached there."""

    units: list[int] = dataclasses.field(default_factory=list[int])
    after: list[tuple[float, StreamStates, float]] = dataclasses.field(
        default_factory=list[tuple[float, StreamStates, float]]
    )
    """By unit, behind it: seconds since the place, the state, and the least seconds
    that are still to come."""

    def cut(self, count: int) -> None:
        """Forgets all but the first units."""
        del self.units[count:], self.after[count:]


class Replayed:
    """Stretches that were replayed, and the seconds of the rest from states on."""

    def __init__(self, places: int) -> None:
        """Begins with nothing.

        Args:
            places: Of the order, the one behind the last included.
        """
        self.stretches: dict[int, ReplayedStretch] = {}
        """By place where they begin: what was replayed last."""
        self.rests: list[dict[StreamStates, float] | None] = [None] * places
        """By place: from states on the seconds to the end, in the present order."""
        self._kept = 0

    def add(self, place: int, state: StreamStates, seconds: float) -> None:
        """Notes how long the rest of the order takes."""
        if self._kept > _MOST:
            self.forget(len(self.rests))
        rests = self.rests[place]
        if rests is None:
            rests = self.rests[place] = {}
        rests[state] = seconds
        self._kept += 1

    def forget(self, end: int) -> None:
        """Forgets what may have changed with the order.

        Args:
            end: From this place on it is as it was.
        """
        self.stretches.clear()
        self.rests[:end] = [None] * end
        if end == len(self.rests):
            self._kept = 0
