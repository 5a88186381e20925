"""The libraries that a stage calls: real ones, or in a dry run those in their place."""

from __future__ import annotations

from typing import Final

from gpu_stages.cuda.libraries import Places, find
from gpu_stages.stage import Request
from gpu_stages.standin.build import compile_standins

_PATIENCE: Final = 20.0
# Of a stage's time: something that hangs must leave enough of it to say so.
_PATIENCE_SHARE: Final = 0.1


def places(request: Request) -> Places:
    """Where the libraries are.

    Raises:
        CannotRunError: One is missing.
    """
    if request.dry:
        return Places.all_in(compile_standins(request.folder))
    return find(request.nccl)


def patience(request: Request) -> float:
    """Seconds after which something that is waited for counts as hung.

    Example:
        >>> from pathlib import Path
        >>> patience(Request("h100", False, 280.0, Path("."))), patience(
        ...     Request("h100", True, 50.0, Path(".")))
        (20.0, 5.0)
    """
    return min(_PATIENCE, _PATIENCE_SHARE * request.seconds)
