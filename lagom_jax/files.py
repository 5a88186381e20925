"""Files that are there as a whole, or not at all."""

from __future__ import annotations

import functools
import hashlib
import os
import secrets
from pathlib import Path


def write_whole(path: str | Path, content: bytes) -> None:
    """Writes a file: all of it, or nothing where writing fails.

    Args:
        path: Where; if it is a link, what it leads to is replaced, not the link.
        content: What.

    Raises:
        OSError: The file cannot be written.

    Example:
        >>> write_whole("/nowhere/file", b"")
        Traceback (most recent call last):
        ...
        FileNotFoundError: [Errno 2] No such file or directory: ...
    """
    target = Path(path).resolve()
    # Processes of several machines may write here, some with the same number.
    beside = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    with beside.open("xb") as file:
        try:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            beside.replace(target)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise


@functools.cache
def digest_of_code(*paths: Path) -> str:
    """A hash of Python files: what they decide, they decide by these.

    Args:
        *paths: Files, and folders of which all files count.

    Example:
        >>> len(digest_of_code(Path(__file__).parent))
        64
        >>> digest_of_code(Path(__file__)) == digest_of_code(Path(__file__).parent)
        False
    """
    digest = hashlib.sha256()
    for path in paths:
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(file.read_bytes())
    return digest.hexdigest()
