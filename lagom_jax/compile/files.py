"""Files that several processes of one user share, and nobody else may write."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class ForeignFileError(OSError):
    """A file that somebody else could have written."""


def read(file: Path) -> bytes | None:
    """The content of a file that is this user's own; None where there is none.

    Raises:
        OSError: It cannot be read, or somebody else could have written it.

    Example:
        >>> read(Path("/no/such/file")) is None
        True
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    with open(descriptor, "rb") as opened:
        check_own(os.fstat(opened.fileno()), file)
        return opened.read()


def write(file: Path, content: bytes) -> None:
    """Writes a file so that others see all of it or nothing.

    Raises:
        OSError: It cannot be written, or its folder is not this user's own.
    """
    own_folder(file.parent)
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=".new-")
    try:
        with open(descriptor, "wb") as opened:
            opened.write(content)
        os.replace(name, file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def own_folder(folder: Path) -> None:
    """Makes a folder that only this user may write to, or checks that it is one.

    Raises:
        OSError: It cannot be made, or somebody else may write to it.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    check_own(folder.stat(), folder)


def check_own(status: os.stat_result, path: Path) -> None:
    """Raises ForeignFileError where another user could have written something."""
    if status.st_uid != os.geteuid():
        raise ForeignFileError(f"{path} belongs to another user (id {status.st_uid})")
    if status.st_mode & _OTHERS_WRITE:
        raise ForeignFileError(
            f"others may write to {path}: chmod go-w {path}, or remove it"
        )
