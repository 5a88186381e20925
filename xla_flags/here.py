"""Flags set on this machine: the only module that looks at the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xla_flags.pinned import Pin, pinned_by_environment, pinned_by_options


def pinned_here(options: Mapping[str, Any] | None = None) -> tuple[Pin, ...]:
    """The values that XLA_FLAGS, NCCL's variables and its files set on this machine.

    Args:
        options: Compiler options that are set, too.
    """
    found = pinned_by_environment(os.environ, _read, home=_home())
    return (*found, *pinned_by_options(options or {}))


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
