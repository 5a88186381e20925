"""What processes have said, where it went to a file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_LAST: Final = 60_000
_LONGEST: Final = 400
_NOISE: Final = re.compile(r"^\s*$|^[IW]\d{4} |^\s+at |^\*\*\*|^#|^For simplicity, JAX")


def said(log: Path) -> str:
    """The end of a log; empty where there is none.

    Example:
        >>> said(Path("no such log"))
        ''
    """
    return log.read_text(errors="replace")[-_LAST:] if log.exists() else ""


def last_words(log: Path) -> str:
    """The last line of a log that says something.

    Example:
        >>> last_words(Path("no such log"))
        'nothing'
    """
    lines = [line for line in said(log).splitlines() if not _NOISE.search(line)]
    return lines[-1].strip()[:_LONGEST] if lines else "nothing"
