"""Splices: other units, or the same in another order, for a stretch of an order.

A unit goes further up together with those units in between that it needs, or further
down together with those that need it. What goes along keeps its own order, and so does
what it passes; nothing outside the stretch between the two places changes. So a legal
order stays legal, and a splice costs what the stretch is long, not the order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from lagom_jax.order.sequence import Order, Unit


@dataclasses.dataclass(frozen=True, slots=True)
class Splice:
    """The units that stand in a stretch of an order instead of those that do."""

    first: int
    """The first place of the stretch."""
    units: Sequence[int]
    """The same units as before, by number, in their new order."""

    @property
    def end(self) -> int:
        """The place behind the stretch."""
        return self.first + len(self.units)

    def applied(self, order: Sequence[int]) -> Order:
        """The whole order with it.

        Example:
            >>> Splice(1, (2, 1)).applied((0, 1, 2, 3))
            (0, 2, 1, 3)
        """
        return (*order[: self.first], *self.units, *order[self.end :])


def shifts(
    units: Sequence[Unit], order: Sequence[int], place: int, targets: Iterable[int]
) -> Iterator[Splice]:
    """Splices that bring a unit to one target after another, each farther away.

    Args:
        units: All units, by number.
        order: A legal order.
        place: The unit's place.
        targets: Places on one side of it, the nearest first: the unit's, or, if others
            go along, the farthest of those.

    Example:
        >>> from lagom_jax.order.sequence import Unit
        >>> units = [Unit(n, (), (), needs, frozenset(), 0)
        ...          for n, needs in enumerate([(), (), (1,), ()])]
        >>> [splice.applied(range(4)) for splice in shifts(units, range(4), 2, (1, 0))]
        [(0, 1, 2, 3), (1, 2, 0, 3)]
        >>> [splice.applied(range(4)) for splice in shifts(units, range(4), 1, (3,))]
        [(0, 3, 1, 2)]
    """
    along, passed = [order[place]], list[int]()
    up, down = set(units[order[place]].needs), {order[place]}
    at = place
    for target in targets:
        while at > target:
            at -= 1
            number = order[at]
            if number in up:
                along.append(number)
                up.update(units[number].needs)
            else:
                passed.append(number)
        while at < target:
            at += 1
            number = order[at]
            if down.isdisjoint(units[number].needs):
                passed.append(number)
            else:
                along.append(number)
                down.add(number)
        if target < place:
            yield Splice(target, [*along[::-1], *passed[::-1]])
        else:
            yield Splice(place, [*passed, *along])


def shifted(
    units: Sequence[Unit], order: Sequence[int], place: int, target: int
) -> Splice:
    """The splice that brings a unit to a single target, as in `shifts`."""
    (splice,) = shifts(units, order, place, (target,))
    return splice
