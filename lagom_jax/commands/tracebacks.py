"""Exceptions of the user's own step, without the frames that led to it."""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from types import TracebackType

FULL = "LAGOM_TRACEBACK"
"""Set to `full`, this variable shows every frame."""

_PACKAGE = Path(__file__).parents[1]
_MACHINERY = (f"{_PACKAGE}{os.sep}", f"{Path(os.__file__).parent}{os.sep}", "<frozen")
_INSTALLED = ("site-packages", "dist-packages", "lagom_models")


def users_part(error: BaseException) -> str:
    """The traceback from the first frame of the user's own code on.

    Args:
        error: What came out of a command.

    Returns:
        The text to print; empty where the user's code has no part in the error, or
        where the user wants to see all of it.

    Example:
        >>> users_part(ValueError("raised by nobody"))
        ''
    """
    if os.environ.get(FULL) == "full":
        return ""
    if isinstance(error, SyntaxError) and _is_users(error.filename or "<frozen"):
        return "".join(traceback.format_exception_only(error))
    frame = _first_of_user(error.__traceback__)
    if frame is None:
        return ""
    return "".join(traceback.format_exception(type(error), error, frame))


def _first_of_user(frame: TracebackType | None) -> TracebackType | None:
    while frame is not None and not _is_users(frame.tb_frame.f_code.co_filename):
        frame = frame.tb_next
    return frame


def _is_users(file: str) -> bool:
    parts = Path(file).parts
    return not file.startswith(_MACHINERY) and not any(p in parts for p in _INSTALLED)
