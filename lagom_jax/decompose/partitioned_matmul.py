"""Matmuls whose collectives the partitioner adds, in chunks of their rows.

The partitioner communicates what each chunk takes or makes by itself, so that one
chunk's collective can travel beside another's matmul.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lagom_jax.decompose.cut_choice import Slicing
from lagom_jax.decompose.flat_program import Step, run_step
from lagom_jax.decompose.form import PLAIN
from lagom_jax.decompose.matmul_dimensions import operand_dimension
from lagom_jax.decompose.shard_slices import joined_shards, slice_of_shards
from lagom_jax.decompose.sites import LeftSite


def in_chunks(step: Step, values: Sequence[Any], slicing: Slicing) -> list[Any] | None:
    """The result of a matmul in its form; None where it has none, or cannot have it.

    Args:
        step: The matmul, outside of `jax.shard_map`.
        values: Its operands.
        slicing: What was asked for, and what becomes of it.
    """
    assert slicing.forms is not None
    site = step.site
    form = slicing.forms(site)
    slicing.seen.append(site)
    if form is None or (form.kind == PLAIN.kind and form.slices == 1):
        return None
    if form.kind != PLAIN.kind:
        slicing.left.append(LeftSite(site, form, "left to the partitioner"))
        return None
    out = _rows(step, form.slices)
    if out is None:
        slicing.left.append(LeftSite(site, form, "no rows"))
        return None
    found = operand_dimension(step, out)
    assert found is not None
    place, d = found
    given = list(values)
    pieces: list[Any] = []
    for part in range(form.slices):
        given[place] = slice_of_shards(values[place], d, (part, form.slices))
        pieces += run_step(step, given)
    slicing.cut.append(site)
    return [joined_shards(pieces, out)]


def _rows(step: Step, slices: int) -> int | None:
    """The dimension of the result to cut: the longest of the larger operand's rows."""
    shapes = [variable.aval.shape for variable in step.equation.invars]
    shape = step.equation.outvars[0].aval.shape
    larger = max(range(len(shapes)), key=lambda place: math.prod(shapes[place]))
    able: dict[int, tuple[bool, bool, int]] = {}
    for d, size in enumerate(shape):
        found = operand_dimension(step, d)
        if found is not None and size % slices == 0 and size > 0:
            place, own = found
            # Spread over the last dimension, single elements would be picked.
            able[d] = (place == larger, own < len(shapes[place]) - 1, size)
    return max(able, key=lambda d: able[d], default=None)
