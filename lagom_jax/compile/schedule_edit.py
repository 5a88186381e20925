"""Another order of instructions than the one XLA's scheduler chose, as data.

And which collectives run on a second stream, which only makes sense with an order that
has several under way at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from lagom_jax.errors import StepError


@dataclasses.dataclass(frozen=True, slots=True)
class ScheduleEdit:
    """New sequences for some computations of one schedule.

    Example:
        >>> edit = ScheduleEdit("ab12", {0: (0, 2, 1)})
        >>> ScheduleEdit.from_json(edit.to_json()) == edit
        True
        >>> ScheduleEdit("ab12", {0: (0, 2, 2)})
        Traceback (most recent call last):
        ...
        lagom_jax.errors.StepError: sequence 0 of the order is no permutation of 3
        instructions: 1 is missing
    """

    fingerprint: str
    """Of the schedule that the order was made for; see `scheduled_order`."""
    sequences: Mapping[int, tuple[int, ...]]
    """By the number of a computation among those that have a sequence, as they stand in
    the module: where each instruction of the new sequence stood in the old one."""
    aside: Mapping[int, tuple[int, ...]] = dataclasses.field(
        default_factory=dict[int, tuple[int, ...]]
    )
    """By the same numbers: where in the old sequence stood what launches a collective
    that goes to the second stream."""

    def __post_init__(self) -> None:
        for number, permutation in self.sequences.items():
            if number < 0:
                raise StepError(f"the order names computation {number}: below 0")
            missing = set(range(len(permutation))).difference(permutation)
            if missing:
                raise StepError(
                    f"sequence {number} of the order is no permutation of "
                    f"{len(permutation)} instructions: {min(missing)} is missing"
                )

    @property
    def keeps_everything(self) -> bool:
        """Whether every instruction stays where it is, and on its stream.

        Example:
            >>> ScheduleEdit("ab12", {0: (0, 1, 2)}).keeps_everything
            True
        """
        return not self.aside and all(
            list(permutation) == sorted(permutation)
            for permutation in self.sequences.values()
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data, as JSON has it.

        Example:
            >>> ScheduleEdit("ab12", {0: (1, 0)}).to_json()
            {'fingerprint': 'ab12', 'sequences': {'0': [1, 0]}, 'aside': {}}
        """
        return {
            "fingerprint": self.fingerprint,
            "sequences": _plain(self.sequences),
            "aside": _plain(self.aside),
        }

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """The order that `to_json` wrote.

        Args:
            data: What a JSON parser returned.

        Raises:
            StepError: The data is no order; the message says where.

        Example:
            >>> ScheduleEdit.from_json({"fingerprint": "ab12"})
            Traceback (most recent call last):
            ...
            lagom_jax.errors.StepError: the order has no sequences
        """
        if not isinstance(data, dict):
            raise StepError(f"the order is {type(data).__name__}, not an object")
        parts = (("fingerprint", str), ("sequences", dict), ("aside", dict))
        for name, kind in parts:
            if name not in data:
                raise StepError(f"the order has no {name}")
            if not isinstance(data[name], kind):
                raise StepError(
                    f"{name} of the order is {type(data[name]).__name__}, not "
                    f"{kind.__name__}"
                )
        return cls(
            data["fingerprint"],
            dict(_places("sequences", *pair) for pair in data["sequences"].items()),
            dict(_places("aside", *pair) for pair in data["aside"].items()),
        )


def _plain(places: Mapping[int, tuple[int, ...]]) -> dict[str, list[int]]:
    return {str(number): list(places[number]) for number in sorted(places)}


def _places(part: str, name: Any, given: Any) -> tuple[int, tuple[int, ...]]:
    if not (isinstance(name, str) and name.isascii() and name.isdigit()):
        raise StepError(f"{part} of the order has {name!r}, not a number")
    if not isinstance(given, list) or any(type(place) is not int for place in given):
        raise StepError(f"{part} of the order, {name}: not a list of whole numbers")
    return int(name), tuple(given)
