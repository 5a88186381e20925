"""The code that asks about the machine: a user's, a library's, or jax's own."""

from __future__ import annotations

import functools
import importlib
import os
import sysconfig
from types import FrameType

import jax


def is_lookup(frame: FrameType) -> bool:
    """True for code of Python that reads an environment variable for others."""
    return frame.f_code.co_filename in (os.__file__, "<frozen os>") or (
        "_collections_abc" in frame.f_code.co_filename
    )


def asking_frame(frame: FrameType | None) -> FrameType | None:
    """The frame if it is of a user's code or of a library's that is not jax's."""
    if frame is None:
        return None
    file = frame.f_code.co_filename
    if file.startswith((*_folders(), "<frozen")):
        return None
    standard = file.startswith(sysconfig.get_paths()["stdlib"] + os.sep)
    installed = "site-packages" in file or "dist-packages" in file
    return None if standard and not installed else frame


@functools.cache
def _folders() -> tuple[str, ...]:
    """Folders of code that is told the truth."""
    modules = [jax, importlib.import_module("jaxlib")]
    folders = [os.path.dirname(module.__file__ or "") + os.sep for module in modules]
    return (*folders, os.path.dirname(os.path.dirname(__file__)) + os.sep)


def place_of(frame: FrameType) -> str:
    """File and line of a frame."""
    file = frame.f_code.co_filename
    return f"{os.path.basename(file)}:{frame.f_lineno}"
