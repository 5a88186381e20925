"""Checks of the mesh axis, and values that vary along it."""

from __future__ import annotations

from typing import Any

import jax
from jax import lax

from lagom_jax.decompose.form import DecomposeError


def axis_size(axis_name: str) -> int:
    """The number of ranks along an axis.

    Raises:
        DecomposeError: There is no such axis here.
    """
    try:
        return lax.axis_size(axis_name)
    except (NameError, KeyError):
        raise DecomposeError(
            f"no axis {axis_name!r} here: call this inside jax.shard_map over a mesh "
            f"that has the axis {axis_name!r}"
        ) from None


def varying_axes(x: Any) -> frozenset[str]:
    """The mesh axes along which devices may hold different values of `x`.

    Example:
        >>> varying_axes(1.0)
        frozenset()
    """
    found = jax.typeof(x)
    newer = getattr(found, "manual_axis_type", None)
    return frozenset(getattr(newer or found, "varying" if newer else "vma", ()))


def alike(axis_name: str, *values: Any) -> tuple[Any, ...]:
    """The values, all marked as varying along the axes that any of them varies along.

    The transpose of a mark adds up gradients over its axis, so that a weight that all
    devices share gets the gradient of all.
    """
    if not any(varying_axes(value) for value in jax.tree.leaves(values)):
        # Either nothing varies, or shard_map does not check that.
        return tuple(jax.tree.map(lambda v: mark(v, {axis_name}), values))
    axes = {axis_name}.union(*map(varying_axes, jax.tree.leaves(values)))
    return tuple(jax.tree.map(lambda value: mark(value, axes), values))


def mark(x: jax.Array, axes: set[str]) -> jax.Array:
    """Marks `x` as varying along the axes."""
    missing = tuple(sorted(axes - varying_axes(x)))
    return lax.pcast(x, missing, to="varying") if missing else x
