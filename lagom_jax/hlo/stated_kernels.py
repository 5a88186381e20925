"""Kernels of other libraries whose work or time the user states.

A call of a library that lagom_jax does not know says nothing but its operands and
results. What it computes, or how long it takes, can be stated in a table:

    {"kernels": [
      {"name": "my_attention_*", "seconds": 0.00085},
      {"name": "my_matmul", "flops": 2.2e12, "bytes": 201326592}
    ]}
"""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from lagom_jax.errors import KernelTableError
from lagom_jax.typed_json import FormError, parse_object, typed

if TYPE_CHECKING:
    from lagom_jax.hlo.work import Work


@dataclasses.dataclass(frozen=True, slots=True)
class StatedKernel:
    """A statement about all calls of a name: their time, or their work.

    Example:
        >>> StatedKernel("my_*", seconds=1e-3)
        StatedKernel(name='my_*', seconds=0.001, flops=None, bytes=None)
        >>> StatedKernel("my_*")
        Traceback (most recent call last):
        ...
        lagom_jax.errors.KernelTableError: kernel 'my_*': state its seconds, or its
        flops and bytes
    """

    name: str
    """The target of the custom call, or a pattern such as `te_*`."""
    seconds: float | None = None
    """Time of one call alone."""
    flops: float | None = None
    """Operations of one call, taken for matrix products in bf16."""
    bytes: float | None = None
    """Bytes that one call moves; by default its operands and results."""

    def __post_init__(self) -> None:
        """Checks that it says something that can be."""
        figures = (self.seconds, self.flops, self.bytes)
        if all(figure is None for figure in figures):
            raise KernelTableError(
                f"kernel {self.name!r}: state its seconds, or its flops and bytes"
            )
        if self.seconds is not None and figures[1:] != (None, None):
            raise KernelTableError(
                f"kernel {self.name!r}: seconds say all; leave out flops and bytes"
            )
        for figure in figures:
            if figure is not None and not (figure >= 0 and math.isfinite(figure)):
                raise KernelTableError(
                    f"kernel {self.name!r}: {figure} is no time, and no work"
                )

    def applied(self, work: Work) -> Work:
        """The work of a call, as it is stated.

        Args:
            work: The work as far as it is known without.
        """
        if self.seconds is not None:
            seconds = self.seconds
            return dataclasses.replace(work, kind="stated", stated_seconds=seconds)
        moved = work.hbm_bytes if self.bytes is None else round(self.bytes)
        written = min(work.bytes_written, moved)
        return dataclasses.replace(
            work,
            kind="stated",
            flops=self.flops or 0.0,
            matmuls=(),
            bytes_read=moved - written,
            bytes_written=written,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _Table:
    kernels: tuple[StatedKernel, ...]


def load_kernels(path: str | Path) -> tuple[StatedKernel, ...]:
    """Reads a table of stated kernels.

    Args:
        path: A file of JSON, as this module's text shows it.

    Raises:
        KernelTableError: It cannot be read, or says what cannot be.

    Example:
        >>> load_kernels("no_such.json")
        Traceback (most recent call last):
        ...
        lagom_jax.errors.KernelTableError: cannot read the kernels in no_such.json...
    """
    try:
        document = parse_object(Path(path).read_text(encoding="utf-8"))
        return typed(_Table, _completed(document)).kernels
    except (OSError, UnicodeDecodeError, FormError) as error:
        raise KernelTableError(
            f"cannot read the kernels in {path}: {error}; it is JSON such as "
            '{"kernels": [{"name": "my_kernel", "seconds": 0.001}]}'
        ) from None


def _completed(document: dict[str, Any] | None) -> Any:
    """A table in which each row has all columns."""
    rows = None if document is None else document.get("kernels")
    if document is None or not isinstance(rows, list):
        return document
    empty = {"seconds": None, "flops": None, "bytes": None}
    full: Any = [
        {**empty, **row} if isinstance(row, dict) else row
        for row in cast("list[Any]", rows)
    ]
    return {**document, "kernels": full}


def kernels_of(
    asked: str | Path | Sequence[StatedKernel],
) -> tuple[StatedKernel, ...]:
    """Stated kernels, from records or from their file."""
    return load_kernels(asked) if isinstance(asked, str | Path) else tuple(asked)


def stated_for(stated: Sequence[StatedKernel], target: str) -> StatedKernel | None:
    """The first statement about a target.

    Example:
        >>> stated_for([StatedKernel("te_*", flops=1e9)], "te_gemm").flops
        1000000000.0
    """
    return next((one for one in stated if fnmatch.fnmatchcase(target, one.name)), None)
