"""Matmuls next to a collective, as users choose among them."""

from __future__ import annotations

import dataclasses
import functools
import math
from pathlib import Path
from typing import Any

import jax

from lagom_jax.plan.form import Form
from lagom_jax.plan.rewrite import When, Why

REDUCTIONS = ("psum", "psum2", "psum_invariant")
"""The names that sums over ranks have had."""

COMMUNICATING = frozenset(
    {
        "all_gather",
        "all_gather_invariant",
        "all_to_all",
        "ppermute",
        *REDUCTIONS,
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
        callers: The lines of the calls that lead there, the nearest first.
        backward: Whether it is in the pass that computes gradients, where a layer may
            run a second time.
    """

    kind: str
    shape: tuple[int, ...]
    bytes: int
    line: str
    callers: tuple[str, ...] = ()
    backward: bool = False

    @property
    def when(self) -> When:
        """The pass."""
        return "backward" if self.backward else "forward"

    @property
    def lines(self) -> tuple[str, ...]:
        """Its line, and those of the calls that lead there."""
        return (self.line, *self.callers)


@dataclasses.dataclass(frozen=True, slots=True)
class LeftSite:
    """A collective that was to have a form, and cannot.

    Attributes:
        site: The collective.
        form: The form.
        why: The reason.
        at: The line of what is in the way; empty where none is known.
    """

    site: CommunicatedMatmul
    form: Form
    why: Why
    at: str = ""


def site_of(
    equation: Any, lines: tuple[str, ...], *, backward: bool = False
) -> CommunicatedMatmul:
    """The site that an equation is, with its places in the source, if any is known."""
    aval = equation.outvars[0].aval
    return CommunicatedMatmul(
        kind=equation.primitive.name,
        shape=tuple(aval.shape),
        bytes=math.prod(aval.shape) * aval.dtype.itemsize,
        line=lines[0] if lines else "",
        callers=lines[1:],
        backward=backward,
    )


def kind_of(site: CommunicatedMatmul) -> str:
    """The primitive, with one name for all sums over ranks."""
    return "psum" if site.kind in REDUCTIONS else site.kind


def lines_of(equation: Any) -> tuple[str, ...]:
    """The user's own lines that an equation comes from, the innermost call first."""
    traceback = getattr(equation.source_info, "traceback", None)
    frames = getattr(traceback, "frames", ())
    named = ((_users_file(frame.file_name), frame.line_num) for frame in frames)
    return tuple(f"{file}:{line}" for file, line in named if file is not None)


@functools.cache
def _users_file(path: str) -> str | None:
    """The name of a file that is the user's own; None where it is a library's.

    An equation has a frame for each call that led to it, and few files have them all.
    """
    ours = any(Path(path).is_relative_to(place) for place in _LIBRARIES)
    return None if ours else Path(path).name
