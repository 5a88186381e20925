"""Matmuls next to a collective, as users choose among them."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import jax

COMMUNICATING = frozenset(
    {
        "all_gather",
        "all_gather_invariant",
        "all_to_all",
        "ppermute",
        "psum",
        "psum2",
        "psum_invariant",
        "reduce_scatter",
    }
)

_HERE = Path(__file__).parent
_LIBRARIES = (_HERE, *(Path(jax.__file__).parents[1] / n for n in ("jax", "flax")))


@dataclasses.dataclass(frozen=True, slots=True)
class CommunicatedMatmul:
    """A place where a function multiplies or communicates.

    Attributes:
        kind: The primitive: `psum`, `all_gather`, `dot_general`, ...
        shape: Of its result.
        bytes: Of its result.
        line: Its place in the source, as `lagom report` names it: `layout.py:218`.
    """

    kind: str
    shape: tuple[int, ...]
    bytes: int
    line: str


def site_of(equation: Any, line: str) -> CommunicatedMatmul:
    """The site that an equation is, with its place in the source."""
    aval = equation.outvars[0].aval
    return CommunicatedMatmul(
        kind=equation.primitive.name,
        shape=tuple(aval.shape),
        bytes=math.prod(aval.shape) * aval.dtype.itemsize,
        line=line,
    )


def line_of(equation: Any) -> str:
    """The user's own line that an equation comes from; empty if unknown."""
    traceback = getattr(equation.source_info, "traceback", None)
    for frame in getattr(traceback, "frames", ()):
        path = Path(frame.file_name)
        if not any(path.is_relative_to(place) for place in _LIBRARIES):
            return f"{path.name}:{frame.line_num}"
    return ""
