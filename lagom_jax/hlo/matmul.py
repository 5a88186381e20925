"""Matrix products: the shape of the problem, whichever way the module spells it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from lagom_jax.hlo.module import Shape


@dataclasses.dataclass(frozen=True, slots=True)
class Matmul:
    """`batch` products of an m x k with a k x n matrix.

    Example:
        >>> Matmul(1, 2048, 4096, 1024, "bf16", "bf16", "bf16").flops
        17179869184
    """

    batch: int
    m: int
    n: int
    k: int
    lhs: str
    """Element type of the m x k side."""
    rhs: str
    """Element type of the k x n side."""
    out: str
    """Element type of the m x n result."""

    @property
    def flops(self) -> int:
        """Floating-point operations: a multiplication and an addition per term.

        A complex term takes four multiplications and four additions.
        """
        per_term = 8 if self.lhs in ("c64", "c128") else 2
        return per_term * self.batch * self.m * self.n * self.k


def integers(values: Iterable[Any]) -> tuple[int, ...]:
    """Whole numbers from a message's field or from JSON, which quotes 64-bit ones.

    Example:
        >>> integers(["1", 2])
        (1, 2)
    """
    return tuple([int(value) for value in values])


def dimension_numbers(numbers: Any) -> tuple[tuple[int, ...], ...]:
    """Contracting and batch dimensions of both sides, from a message or from JSON.

    Returns:
        The left side's contracting dimensions, the right side's, the left side's
        batch dimensions, the right side's.

    Example:
        >>> dimension_numbers({"lhs_contracting_dimensions": ["2"],
        ...                    "rhs_contracting_dimensions": ["1"],
        ...                    "lhs_batch_dimensions": ["0"],
        ...                    "rhs_batch_dimensions": ["0"]})
        ((2,), (1,), (0,), (0,))
    """
    names = (
        "lhs_contracting_dimensions",
        "rhs_contracting_dimensions",
        "lhs_batch_dimensions",
        "rhs_batch_dimensions",
    )
    if isinstance(numbers, Mapping):
        found: Any = [numbers.get(name, ()) for name in names]  # pyright: ignore
    else:
        found = [getattr(numbers, name) for name in names]
    return tuple([integers(values) for values in found])


def dot_matmul(lhs: Shape, rhs: Shape, out: str, numbers: Any) -> Matmul:
    """The product that a dot with these operands and dimension numbers computes.

    Args:
        lhs: Shape of the left operand.
        rhs: Shape of the right operand.
        out: Element type of the result.
        numbers: A DotDimensionNumbers message, or the same as a JSON object.

    Example:
        >>> a = Shape("f32", (8, 128, 64), 8 * 128 * 64 * 4)
        >>> b = Shape("f32", (8, 64, 256), 8 * 64 * 256 * 4)
        >>> dot_matmul(a, b, "f32", {"lhs_contracting_dimensions": [2],
        ...     "rhs_contracting_dimensions": [1], "lhs_batch_dimensions": [0],
        ...     "rhs_batch_dimensions": [0]})
        Matmul(batch=8, m=128, n=256, k=64, lhs='f32', rhs='f32', out='f32')
    """
    summed, rhs_summed, together, rhs_together = dimension_numbers(numbers)
    return Matmul(
        math.prod([lhs.dimensions[d] for d in together]),
        _free(lhs, summed, together),
        _free(rhs, rhs_summed, rhs_together),
        math.prod([lhs.dimensions[d] for d in summed]),
        lhs.type,
        rhs.type,
        out,
    )


def ragged_matmul(lhs: Shape, rhs: Shape, out: str, numbers: Any) -> Matmul:
    """The products of a grouped (ragged) dot, as if all groups were equally large.

    Every row of the ragged dimension belongs to one group, so the operations are
    those of one product over all rows, however the rows are divided. Where the
    number of groups divides the ragged dimension the groups are given as a batch.

    Args:
        lhs: Shape of the left operand, whose ragged dimension the groups divide.
        rhs: Shape of the right operand; it has the group dimension unless the ragged
            dimension is one that is summed over or a batch dimension.
        out: Element type of the result.
        numbers: A RaggedDotDimensionNumbers message, or the same as a JSON object.

    Example:
        >>> a = Shape("bf16", (4096, 512), 4096 * 512 * 2)
        >>> b = Shape("bf16", (8, 512, 1024), 8 * 512 * 1024 * 2)
        >>> ragged_matmul(a, b, "bf16", {"dot_dimension_numbers": {
        ...     "lhs_contracting_dimensions": [1], "rhs_contracting_dimensions": [1]},
        ...     "lhs_ragged_dimensions": [0], "rhs_group_dimensions": [0]})
        Matmul(batch=8, m=512, n=1024, k=512, lhs='bf16', rhs='bf16', out='bf16')
    """
    if isinstance(numbers, Mapping):
        dot: Any = numbers.get("dot_dimension_numbers", {})  # pyright: ignore
        grouped: Any = numbers.get("rhs_group_dimensions", ())  # pyright: ignore
    else:
        dot, grouped = numbers.dot_dimension_numbers, numbers.rhs_group_dimensions
    groups = integers(grouped)  # pyright: ignore
    summed, rhs_summed, together, rhs_together = dimension_numbers(dot)
    whole = Matmul(
        math.prod([lhs.dimensions[d] for d in together]),
        _free(lhs, summed, together),
        _free(rhs, rhs_summed, (*rhs_together, *groups)),
        math.prod([lhs.dimensions[d] for d in summed]),
        lhs.type,
        rhs.type,
        out,
    )
    count = math.prod([rhs.dimensions[d] for d in groups])
    if groups and count and whole.m % count == 0:
        return dataclasses.replace(whole, batch=whole.batch * count, m=whole.m // count)
    return whole


def _free(shape: Shape, summed: Collection[int], together: Collection[int]) -> int:
    taken = {*summed, *together}
    return math.prod([n for d, n in enumerate(shape.dimensions) if d not in taken])
