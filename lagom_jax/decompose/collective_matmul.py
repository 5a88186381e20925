"""Collectives fused with the matmul next to them, for use inside `jax.shard_map`.

Each gives what its plain form gives, forward and gradient, with the sums of scattering
made in another order. The differences are in what can be hidden: a plain collective
has to be over before its matmul begins, or begins after it; here each slice's message
travels behind the matmul of another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast, overload

import jax
import jax.numpy as jnp

from lagom_jax.decompose.form import DecomposeError, Form
from lagom_jax.decompose.mesh_axis import alike, axis_size
from lagom_jax.decompose.ring_slices import Ring, Slices, ring_of
from lagom_jax.decompose.sliced_matmul import (
    Reduction,
    gathered_times,
    gathered_times_whole,
    put_together,
    times_reduced,
    times_scattered,
)

Activation = Callable[..., jax.Array]
RING = Form("ring")


@overload
def all_gather_matmul(
    x: jax.Array,
    w: jax.Array,
    axis_name: str,
    *,
    dimension: int = 0,
    bias: jax.Array | None = None,
    activation: Activation | None = None,
    form: Form = RING,
) -> jax.Array: ...


@overload
def all_gather_matmul(
    x: jax.Array,
    w: Sequence[jax.Array],
    axis_name: str,
    *,
    dimension: int = 0,
    bias: Sequence[jax.Array | None] | None = None,
    activation: None = None,
    form: Form = RING,
) -> tuple[jax.Array, ...]: ...


@overload
def all_gather_matmul(
    x: jax.Array,
    w: Sequence[jax.Array],
    axis_name: str,
    *,
    dimension: int = 0,
    bias: Sequence[jax.Array | None] | None = None,
    activation: Activation,
    form: Form = RING,
) -> jax.Array: ...


def all_gather_matmul(
    x: jax.Array,
    w: Any,
    axis_name: str,
    *,
    dimension: int = 0,
    bias: Any = None,
    activation: Activation | None = None,
    form: Form = RING,
) -> Any:
    """`lax.all_gather(x, axis_name, tiled=True) @ w`, in slices.

    Args:
        x: This rank's rows, of shape (..., features).
        w: A matrix of (features, outputs), or several that `x` is gathered for once.
        axis_name: The mesh axis to gather over.
        dimension: The dimension of `x` that is gathered: any but the last.
        bias: Added to the outputs; as many as there are matrices.
        activation: Applied to each slice as soon as it is there; a function of as many
            arrays as there are matrices. It has to treat all rows alike.
        form: How to cut.

    Returns:
        All rows with the outputs of this rank's `w`; a tuple for several matrices,
        unless an activation makes one array of them.

    Raises:
        DecomposeError: There is no such axis, or shapes do not fit.

    Example:
        >>> import jax.numpy as jnp
        >>> kinds = (jax.sharding.AxisType.Auto,)
        >>> mesh = jax.make_mesh((1,), ("t",), axis_types=kinds)
        >>> spec = jax.sharding.PartitionSpec("t")
        >>> f = jax.shard_map(
        ...     lambda x, w: all_gather_matmul(x, w, "t"),
        ...     mesh=mesh, in_specs=(spec, spec), out_specs=spec,
        ... )
        >>> f(jnp.ones((4, 8)), jnp.ones((8, 2))).shape
        (4, 2)
    """
    weights = (w,) if hasattr(w, "ndim") else tuple(w)
    if activation is None:
        ring = _CutRows.of(x, weights, axis_name, dimension).ring(form, scattered=False)
        biases = _several(bias, len(weights))
        x, several = alike(axis_name, x, weights)
        wholes = cast("Slices", gathered_times_whole(ring, x, several))
        found = _shifted(wholes, biases)
        return found[0] if hasattr(w, "ndim") else found
    # An activation of slices is written where they belong, without a pass of its own.
    ring, slices = gather_matmul_slices(
        x,
        weights,
        axis_name,
        dimension=dimension,
        bias=bias,
        activation=activation,
        form=form,
    )
    return put_together(ring, tuple(ring.by_itself(one[0]) for one in slices))


def gather_matmul_slices(
    x: jax.Array,
    weights: Sequence[jax.Array],
    axis_name: str,
    *,
    dimension: int = 0,
    bias: Any = None,
    activation: Activation | None = None,
    form: Form = RING,
) -> tuple[Ring, tuple[Slices, ...]]:
    """As `all_gather_matmul`, but the slices as they arrive.

    What works row by row can go on with them, and give them to `scatter_matmul_slices`,
    without ever putting them together. The first dimension of a chunk counts the
    examples of each rank, one rank after the other, where rows have another dimension.

    Returns:
        The ring, and for each slice the products with all weights, or in their place
        what the activation made of them.
    """
    cut = _CutRows.of(x, weights, axis_name, dimension)
    ring = cut.ring(form, scattered=False)
    biases = _several(bias, len(weights))
    x, several = alike(axis_name, x, tuple(weights))
    results = cast("tuple[Slices, ...]", gathered_times(ring, x, several))
    # What slices add to the gradient of a bias is added in float32.
    wide = [b if b is None else _in_float32(b) for b in biases]
    made: list[Slices] = []
    for products in results:
        own = [_like(one, b) for one, b in zip(wide, biases, strict=True)]
        shifted = tuple(map(ring.among_examples, _shifted(products, own)))
        made.append(shifted if activation is None else (activation(*shifted),))
    return ring, tuple(made)


def matmul_reduce_scatter(
    x: jax.Array,
    w: jax.Array,
    axis_name: str,
    *,
    dimension: int = 0,
    bias: jax.Array | None = None,
    activation: Activation | None = None,
    form: Form = RING,
) -> jax.Array:
    """`lax.psum_scatter(x @ w, axis_name, tiled=True)`, in slices.

    Args:
        x: All rows, with this rank's features.
        w: This rank's rows of a matrix, of (features, outputs).
        axis_name: The mesh axis to add up over.
        dimension: The dimension of `x` that is scattered: any but the last.
        bias: Added to the sum, once.
        activation: Applied to the sum.
        form: How to cut.

    Returns:
        This rank's rows of the sum over all ranks.

    Raises:
        DecomposeError: There is no such axis, or rows do not divide over it.
    """
    cut = _CutRows.of(x, (w,), axis_name, dimension)
    ring = cut.ring(form, scattered=True, by_rank=takes_fewer(w))
    x, w = alike(axis_name, x, w)
    total = cast("jax.Array", times_scattered(ring, x, w))
    return _finished(total, bias, activation)


def scatter_matmul_slices(ring: Ring, slices: Slices, w: jax.Array) -> jax.Array:
    """As `matmul_reduce_scatter`, of slices as `gather_matmul_slices` gives them."""
    slices, w = alike(ring.axis_name, tuple(map(ring.by_itself, slices)), w)
    return times_scattered(ring, slices, w)


def matmul_all_reduce(
    x: jax.Array,
    w: jax.Array,
    axis_name: str,
    *,
    dimension: int = 0,
    bias: jax.Array | None = None,
    activation: Activation | None = None,
    form: Form = RING,
) -> jax.Array:
    """`lax.psum(x @ w, axis_name)`, in slices.

    Rings and direct messages scatter the sums behind the matmul, and an all-gather
    brings them back together; chunks are all-reduces of a part of the rows each.

    Args:
        x: All rows, with this rank's features.
        w: This rank's rows of a matrix, of (features, outputs).
        axis_name: The mesh axis to add up over.
        dimension: The dimension of `x` that is cut: any but the last.
        bias: Added to the sum, once.
        activation: Applied to the sum.
        form: How to cut.

    Returns:
        The sum over all ranks, the same on each.

    Raises:
        DecomposeError: There is no such axis, or rows do not divide over it.
    """
    cut = _CutRows.of(x, (w,), axis_name, dimension)
    ring = cut.ring(form, scattered=not form.by_collectives, by_rank=False)
    x, w = alike(axis_name, x, w)
    total = cast("jax.Array", times_reduced(Reduction(axis_name, ring), x, w))
    return _finished(total, bias, activation)


def gathered_weight_matmul(
    x: jax.Array, w: jax.Array, axis_name: str, *, form: Form = RING
) -> jax.Array:
    """`x @ lax.all_gather(w, axis_name, axis=1, tiled=True)`, in slices of columns.

    For weights that are stored in parts (FSDP): each part's outputs are computed while
    the next part is under way, and the gradient of the weight is scattered likewise.

    Args:
        x: Any rows, of shape (..., features).
        w: This rank's columns of the matrix, of (features, outputs / ranks).
        axis_name: The mesh axis over which the weight is stored.
        form: How to cut.

    Raises:
        DecomposeError: There is no such axis, or shapes do not fit.
    """
    ranks = axis_size(axis_name)
    _checked(x, (w,), 0)
    flat = x.reshape(-1, x.shape[-1])
    ring = ring_of(axis_name, ranks, w.shape[1], 0, form)
    stored, rows = alike(axis_name, w.T, flat.T)
    (whole,) = cast("Slices", gathered_times_whole(ring, stored, (rows,)))
    return whole.T.reshape(*x.shape[:-1], ranks * w.shape[1])


def divided(rows: int, ranks: int, axis_name: str) -> int:
    """Rows of each rank.

    Raises:
        DecomposeError: Rows do not divide.

    Example:
        >>> divided(8, 4, "t")
        2
    """
    if rows % ranks:
        raise DecomposeError(
            f"{rows} rows do not divide over the {ranks} ranks of axis {axis_name!r}: "
            f"pad them to {-(-rows // ranks) * ranks}, or take a dimension that divides"
        )
    return rows // ranks


def takes_fewer(w: jax.Array) -> bool:
    """True if a matmul takes no more features than it makes.

    What it multiplies is then put into the order of ranks, in place of what it makes.
    """
    return w.shape[0] <= w.shape[1]


class _CutRows(NamedTuple):
    """Rows that a collective cuts: over which axis and along which dimension."""

    axis_name: str
    ranks: int
    dimension: int
    rows: int
    examples: int
    """The sizes of all dimensions before the rows, multiplied."""

    @classmethod
    def of(
        cls, x: jax.Array, weights: Sequence[jax.Array], axis_name: str, dimension: int
    ) -> _CutRows:
        """The rows of `x`, once shapes are known to fit."""
        ranks = axis_size(axis_name)
        dimension = _checked(x, weights, dimension)
        rows, examples = x.shape[dimension], math.prod(x.shape[:dimension])
        return cls(axis_name, ranks, dimension, rows, examples)

    def ring(self, form: Form, *, scattered: bool, by_rank: bool = True) -> Ring:
        """The ring of all rows, or where they are scattered, of each rank's.

        Nothing is put into the order of ranks where `by_rank` is false.
        """
        rows = self.rows
        if scattered:
            rows = divided(rows, self.ranks, self.axis_name)
        examples = self.examples if by_rank else 1
        return ring_of(self.axis_name, self.ranks, rows, self.dimension, form, examples)


def _checked(x: jax.Array, weights: Sequence[jax.Array], dimension: int) -> int:
    """The dimension, from 0, once shapes are known to fit."""
    if not -x.ndim <= dimension < x.ndim or dimension % x.ndim == x.ndim - 1:
        raise DecomposeError(
            f"dimension {dimension} of an array of shape {x.shape}: choose one of the "
            f"first {x.ndim - 1}; the last is multiplied"
        )
    for w in weights:
        if w.ndim != 2 or w.shape[0] != x.shape[-1]:
            raise DecomposeError(
                f"a weight of shape {w.shape} does not fit rows of {x.shape[-1]} "
                f"features: give a matrix of ({x.shape[-1]}, outputs); for one matrix "
                "per example, use jax.vmap"
            )
    return dimension % x.ndim


def _several(bias: Any, count: int) -> tuple[jax.Array | None, ...]:
    if bias is None:
        return (None,) * count
    biases = (bias,) if hasattr(bias, "ndim") else tuple(bias)
    if len(biases) != count:
        raise DecomposeError(
            f"{len(biases)} biases for {count} weights: give one each, or None"
        )
    return biases


def _in_float32(bias: jax.Array) -> jax.Array:
    return bias.astype(jnp.promote_types(bias.dtype, jnp.float32))


def _like(wide: jax.Array | None, bias: jax.Array | None) -> jax.Array | None:
    return bias if wide is None or bias is None else wide.astype(bias.dtype)


def _shifted(products: Slices, biases: Sequence[jax.Array | None]) -> Slices:
    return tuple(
        y if b is None else y + b for y, b in zip(products, biases, strict=True)
    )


def _finished(
    total: jax.Array, bias: jax.Array | None, activation: Activation | None
) -> jax.Array:
    shifted = total if bias is None else total + bias
    return shifted if activation is None else activation(shifted)
