"""Messages of the wrapper: seen without any set-up, each reason to fall back once."""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from typing import Final

from lagom_jax.errors import LagomError
from lagom_jax.units import printable

LOG: Final = logging.getLogger("lagom_jax")
_said: set[str] = set()
_lock = threading.Lock()


class LagomWarning(UserWarning):
    """The program as it was runs, and why."""


def visibly(message: str) -> None:
    """Logs a line, or prints it to stderr where no log would show it.

    `logging.getLogger("lagom_jax").setLevel(logging.WARNING)` makes it silent.
    """
    message = printable(message)
    if LOG.isEnabledFor(logging.INFO) and LOG.hasHandlers():
        LOG.info("%s", message)
    elif not LOG.level > logging.INFO and sys.stderr is not None:
        try:
            print(f"lagom_jax: {message}", file=sys.stderr, flush=True)
        except (OSError, ValueError):
            # A terminal that is gone is no reason to stop.
            LOG.debug("%s", message)


def warn_once(reason: str, *, first: bool) -> None:
    """Warns, unless this process has said so before or another one does.

    Where all warnings are ignored, as in many training programs, it goes to the log.

    Args:
        reason: Why, and what can be done.
        first: Whether this is the job's first process.
    """
    reason = printable(reason)
    if not once(reason):
        return
    if not first:
        LOG.debug("%s", reason)
        return
    if _hidden_with_all():
        LOG.warning("%s", reason)
        return
    try:
        warnings.warn(f"lagom_jax: {reason}", LagomWarning, stacklevel=2)
    except LagomWarning:
        # Warnings are errors here; a step that runs as it was is none.
        LOG.warning("%s", reason)


def _hidden_with_all() -> bool:
    """True if a filter that was meant for warnings in general hides this one."""
    for action, message, category, module, line in warnings.filters:
        for_all = message is None and module is None and not line
        if for_all and issubclass(LagomWarning, category):
            return action == "ignore" and category is not LagomWarning
    return False


def fallen_back(error: BaseException, *, first: bool) -> None:
    """Warns that the program as it was runs.

    Args:
        error: The reason.
        first: As `warn_once` takes it.
    """
    warn_once(f"the program as it was runs, since {reasons(error)}", first=first)


def reasons(error: BaseException) -> str:
    """The reasons why nothing came of it, for a warning."""
    return str(error) if isinstance(error, LagomError) else told(error)


def told(error: BaseException) -> str:
    """An error as others are told of it."""
    return f"{type(error).__name__}: {error}".strip().rstrip(":")


def once(reason: str) -> bool:
    """True if this is said for the first time."""
    with _lock:
        new = reason not in _said
        _said.add(reason)
    return new
