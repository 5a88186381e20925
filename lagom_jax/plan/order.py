"""Another order of instructions than the one XLA's scheduler chose, as data.

And which collectives run on a second stream, which only makes sense with an order that
has several under way at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final, Literal

from lagom_jax.errors import StepError


@dataclasses.dataclass(frozen=True, slots=True)
class OrderOutcome:
    """The compiler's answer to an order.

    Example:
        >>> str(APPLIED), str(OrderOutcome("refused", "`t` is used before it is made"))
        ('applied', '`t` is used before it is made')
    """

    status: Literal["applied", "not met", "refused"]
    """`not met` where no module had the schedule that the order was made for."""
    why: str = ""
    """Reason of a refusal."""

    def __str__(self) -> str:
        """For people."""
        return self.why or self.status


APPLIED: Final = OrderOutcome("applied")
NOT_MET: Final = OrderOutcome("not met")


@dataclasses.dataclass(frozen=True, slots=True)
class ScheduleEdit:
    """New sequences for some computations of one schedule.

    Example:
        >>> from lagom_jax.typed_json import plain, typed
        >>> edit = ScheduleEdit("ab12", {0: (0, 2, 1)})
        >>> plain(edit)
        {'fingerprint': 'ab12', 'sequences': {'0': [0, 2, 1]}, 'second_stream': {}}
        >>> typed(ScheduleEdit, plain(edit)) == edit
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
    second_stream: Mapping[int, tuple[int, ...]] = dataclasses.field(
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
        """True if every instruction stays where it is, and on its stream.

        Example:
            >>> ScheduleEdit("ab12", {0: (0, 1, 2)}).keeps_everything
            True
        """
        return not self.second_stream and all(
            list(permutation) == sorted(permutation)
            for permutation in self.sequences.values()
        )
