"""What is set on this machine: the only module that looks at the environment."""

from __future__ import annotations

import os
from pathlib import Path

from xla_flags.pinned import Pin, pinned_by_environment


def pinned_here() -> tuple[Pin, ...]:
    """What XLA_FLAGS, NCCL's variables and its files set on this machine."""
    return pinned_by_environment(os.environ, _read, home=_home())


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _home() -> str:
    try:
        return str(Path.home())
    except RuntimeError:
        return ""
