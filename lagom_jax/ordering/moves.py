"""Moves within an order. Each keeps every unit behind all that it needs.

A unit goes further up together with those units in between that it needs, or further
down together with those that need it. What moves along keeps its own order, and so
does what it passes; nothing outside the stretch between the two places changes.
"""

from __future__ import annotations

from collections.abc import Sequence

from lagom_jax.ordering.sequence import Order, Unit


def earlier(units: Sequence[Unit], order: Order, place: int, target: int) -> Order:
    """The order with the unit at a place, and what it needs, moved up to a target.

    Args:
        units: All units, by number.
        order: A legal order.
        place: Where the unit stands.
        target: Where it shall stand, or, if it needs others, the first of those.
    """
    needed = set(units[order[place]].needs)
    moved = [order[place]]
    passed: list[int] = []
    for number in reversed(order[target:place]):
        if number in needed:
            moved.append(number)
            needed.update(units[number].needs)
        else:
            passed.append(number)
    moved.reverse()
    passed.reverse()
    return (*order[:target], *moved, *passed, *order[place + 1 :])


def later(units: Sequence[Unit], order: Order, place: int, target: int) -> Order:
    """The order with the unit at a place, and what needs it, moved down to a target.

    Args:
        units: All units, by number.
        order: A legal order.
        place: Where the unit stands.
        target: Where it shall stand, or, if others need it, the last of those.
    """
    moved = [order[place]]
    going = {order[place]}
    passed: list[int] = []
    for number in order[place + 1 : target + 1]:
        if going.isdisjoint(units[number].needs):
            passed.append(number)
        else:
            moved.append(number)
            going.add(number)
    return (*order[:place], *passed, *moved, *order[target + 1 :])


def moved(units: Sequence[Unit], order: Order, place: int, target: int) -> Order:
    """`earlier` or `later`, whichever leads to the target.

    Example:
        >>> from lagom_jax.ordering.sequence import Unit
        >>> units = [Unit(n, (), (), needs, frozenset(), 0)
        ...          for n, needs in enumerate([(), (), (1,), ()])]
        >>> moved(units, (0, 1, 2, 3), 2, 0)
        (1, 2, 0, 3)
        >>> moved(units, (0, 1, 2, 3), 1, 3)
        (0, 3, 1, 2)
    """
    if target < place:
        return earlier(units, order, place, target)
    return later(units, order, place, target)
