"""Layers cut over a mesh axis, with their collectives in slices; for `jax.shard_map`.

Each stands in the place of the plain layer of the same name. Rows are the dimension
`dimension`: the sequence, in arrays of (batch, sequence, features).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import lax

from lagom_jax.decompose.assembly import at_once
from lagom_jax.decompose.collective_matmul import (
    RING,
    all_gather_matmul,
    divided,
    gather_matmul_slices,
    matmul_all_reduce,
    matmul_reduce_scatter,
    scatter_matmul_slices,
    takes_fewer,
)
from lagom_jax.decompose.form import Form, cut_evenly
from lagom_jax.decompose.mesh_axis import alike, axis_size
from lagom_jax.decompose.ring_slices import Ring, Slices, ring_of
from lagom_jax.decompose.sliced_matmul import take_apart, times_scattered

Attend = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]
"""Attention of some queries: (queries, keys, values, the queries' positions)."""


def column_parallel(
    x: jax.Array,
    w: Any,
    axis_name: str,
    *,
    bias: Any = None,
    activation: Callable[..., jax.Array] | None = None,
    dimension: int = 0,
    form: Form = RING,
) -> Any:
    """A dense layer whose outputs are cut, on rows that are cut: gathers, multiplies.

    The arguments are those of `all_gather_matmul`.
    """
    return all_gather_matmul(
        x,
        w,
        axis_name,
        bias=bias,
        activation=activation,
        dimension=dimension,
        form=form,
    )


def row_parallel(
    x: jax.Array,
    w: jax.Array,
    axis_name: str,
    *,
    bias: jax.Array | None = None,
    dimension: int = 0,
    scatter: bool = True,
    form: Form = RING,
) -> jax.Array:
    """A dense layer whose inputs are cut: multiplies, and adds up over ranks.

    Args:
        x: All rows, with this rank's features.
        w: This rank's rows of the matrix.
        axis_name: The mesh axis.
        bias: Added once.
        dimension: The dimension that rows are counted along.
        scatter: Whether each rank keeps its rows only (sequence parallelism); if not,
            all ranks get all rows.
        form: How to cut.
    """
    layer = matmul_reduce_scatter if scatter else matmul_all_reduce
    return layer(x, w, axis_name, bias=bias, dimension=dimension, form=form)


def feed_forward(
    x: jax.Array,
    up: Sequence[jax.Array],
    down: jax.Array,
    axis_name: str,
    *,
    activation: Callable[..., jax.Array],
    bias: Sequence[jax.Array | None] | None = None,
    dimension: int = 0,
    form: Form = RING,
) -> jax.Array:
    """Both halves of a feed-forward layer; slices go from one to the other.

    Args:
        x: This rank's rows.
        up: The matrices before the activation, cut by columns; two if it is gated.
        down: The matrix after it, cut by rows.
        axis_name: The mesh axis.
        activation: A function of as many arrays as there are in `up`, row by row.
        bias: One for each of `up`.
        dimension: The dimension that rows are counted along.
        form: How to cut.

    Returns:
        This rank's rows of the result.
    """
    ring, slices = gather_matmul_slices(
        x,
        up,
        axis_name,
        dimension=dimension,
        bias=bias,
        activation=activation,
        form=form,
    )
    return scatter_matmul_slices(ring, tuple(several[0] for several in slices), down)


def attention_output(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    out: jax.Array,
    axis_name: str,
    attend: Attend,
    *,
    dimension: int = 1,
    form: Form = RING,
) -> jax.Array:
    """Attention and its output projection by slices of queries, scattered as they come.

    Scores, softmax, values and projection of one slice are computed while the sum for
    another is under way: more work behind each message than the projection alone.

    Args:
        query: Queries of this rank's heads, with the sequence along `dimension`.
        key: Keys of all positions, likewise.
        value: Values of all positions, likewise.
        out: This rank's rows of the output projection.
        axis_name: The mesh axis that heads are cut over.
        attend: Computes attention for some queries; its result has the features of
            all heads in its last dimension, and `dimension` is that of the queries.
        dimension: The dimension of the sequence.
        form: How to cut.

    Returns:
        This rank's positions of the result.

    Raises:
        DecomposeError: There is no such axis, or positions do not divide over it.
    """
    ranks = axis_size(axis_name)
    rows = divided(query.shape[dimension], ranks, axis_name)
    ring = ring_of(axis_name, ranks, rows, dimension, form)
    query, key, value, out = alike(axis_name, query, key, value, out)
    pieces = cast("Slices", take_apart(ring, query))
    made = tuple(
        attend(piece, key, value, positions)
        for piece, positions in zip(pieces, _positions(ring), strict=True)
    )
    examples = math.prod(query.shape[:dimension]) if takes_fewer(out) else 1
    home = ring_of(axis_name, ranks, rows, dimension, form, examples)
    if home.by_rank:
        made = tuple(at_once(home, one) for one in made)
    return times_scattered(home, made, out)


def _positions(ring: Ring) -> list[jax.Array]:
    """The positions in the sequence of every slice's rows."""
    if not ring.form.by_collectives:
        places = map(ring.place, range(ring.count))
        return [start + jnp.arange(size) for start, size in places]
    blocks = jnp.arange(ring.ranks)[:, None] * ring.rows
    return [
        (blocks + start + jnp.arange(size)).reshape(-1) for start, size in ring.cuts
    ]


def ulysses_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    axis_name: str,
    attend: Attend,
    *,
    slices: int = 2,
) -> jax.Array:
    """Attention over a sequence that is cut, by swapping sequence for heads.

    Keys and values are swapped whole; queries in slices, so that those of one slice,
    and its results on their way back, travel while attention computes another.

    Args:
        query: This rank's positions of all heads: (batch, positions, heads, width).
        key: Likewise; its heads must divide over the ranks, too.
        value: Likewise.
        axis_name: The mesh axis that positions are cut over.
        attend: Computes attention for some queries, in the shape of the queries.
        slices: Parts that each rank's positions are cut into.

    Returns:
        This rank's positions of the result, of all heads.

    Raises:
        DecomposeError: There is no such axis, or heads do not divide over it.
    """
    ranks = axis_size(axis_name)
    for heads in (query.shape[2], key.shape[2]):
        divided(heads, ranks, axis_name)
    query, key, value = alike(axis_name, query, key, value)
    rows = query.shape[1]
    keys, values = (_to_heads(x, axis_name) for x in (key, value))
    made: list[jax.Array] = []
    for start, size in cut_evenly(rows, slices):
        piece = lax.slice_in_dim(query, start, start + size, axis=1)
        blocks = jnp.arange(ranks)[:, None] * rows
        positions = (blocks + start + jnp.arange(size)).reshape(-1)
        mixed = attend(_to_heads(piece, axis_name), keys, values, positions)
        made.append(
            lax.all_to_all(mixed, axis_name, split_axis=1, concat_axis=2, tiled=True)
        )
    return lax.concatenate(made, 1)


def _to_heads(x: jax.Array, axis_name: str) -> jax.Array:
    return lax.all_to_all(x, axis_name, split_axis=2, concat_axis=1, tiled=True)
