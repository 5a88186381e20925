"""The plain form, and parts that are as even as can be."""

from __future__ import annotations

from lagom_jax.errors import DecomposeError as DecomposeError
from lagom_jax.plan.form import Form as Form

PLAIN = Form("chunks")
"""Collectives as they are, whole."""

WHOLE = Form("whole")
"""The same, of rows in the order of ranks."""


def cut_evenly(rows: int, parts: int) -> tuple[tuple[int, int], ...]:
    """Starts and sizes of parts that differ by one row at most; none is empty.

    Example:
        >>> cut_evenly(7, 3)
        ((0, 3), (3, 2), (5, 2))
        >>> cut_evenly(2, 4)
        ((0, 1), (1, 1))
    """
    parts = min(parts, rows)
    whole, rest = divmod(rows, parts)
    sizes = [whole + (part < rest) for part in range(parts)]
    return tuple((sum(sizes[:part]), size) for part, size in enumerate(sizes))
