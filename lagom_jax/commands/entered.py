"""The `with` blocks that the user's own factories stay in until a command is over."""

import contextlib
from contextlib import AbstractContextManager
from typing import Any

_OPEN = contextlib.ExitStack()


def enter(made: AbstractContextManager[Any]) -> Any:
    """Enters what a factory made, and gives what it stands for.

    Args:
        made: The block; `leave_factories` leaves it.
    """
    return _OPEN.enter_context(made)


def leave_factories() -> None:
    """Leaves the `with` blocks that factories have entered for their steps."""
    _OPEN.close()
