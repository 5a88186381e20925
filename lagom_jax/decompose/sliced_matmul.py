"""Matmuls on slices that arrive or leave, with gradients that are cut the same way.

The gradient of gathering is scattering, and the other way round: so the gradients of
activations are computed in slices too, each while another is under way. The gradients
of weights are one matmul each, over all slices together: they wait for nobody, and many
small ones would have to be added up.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import cast

import jax
import jax.numpy as jnp
from jax import lax

from lagom_jax.decompose.assembly import (
    Assembly,
    Uncut,
    assembled,
    at_once,
    piece_of,
    taken_apart,
)
from lagom_jax.decompose.ring_slices import (
    Ring,
    Slices,
    after,
    gather_slices,
    in_turn,
    plus,
    scatter_slices,
)

Several = tuple[jax.Array, ...]
Rows = Slices | jax.Array
"""Slices in the order of arrival, or all rows, which are cut when they are needed."""


def times(x: jax.Array, w: jax.Array, kind: jnp.dtype | None = None) -> jax.Array:
    """`x @ w`, over the last dimension of `x`; `kind` is the type of the sums."""
    return lax.dot_general(
        x, w, (((x.ndim - 1,), (0,)), ((), ())), preferred_element_type=kind
    )


def times_transposed(x: jax.Array, w: jax.Array, kind: jnp.dtype) -> jax.Array:
    """`x @ w.T`, likewise."""
    return lax.dot_general(
        x, w, (((x.ndim - 1,), (1,)), ((), ())), preferred_element_type=kind
    )


def weight_gradient(x: jax.Array, dy: jax.Array, kind: jnp.dtype) -> jax.Array:
    """The gradient of a weight: a sum over all rows at once.

    Example:
        >>> x, dy = jnp.ones((2, 3, 4)), jnp.ones((2, 3, 5))
        >>> weight_gradient(x, dy, jnp.dtype("float32")).shape
        (4, 5)
    """
    rows = tuple(range(x.ndim - 1))
    found = lax.dot_general(
        x, dy, ((rows, rows), ((), ())), preferred_element_type=jnp.float32
    )
    return found.astype(kind)


def sums_of(ring: Ring, kind: jnp.dtype) -> jnp.dtype:
    """The type in which ranks add up: float32 for shorter ones, unless asked not to.

    What a collective adds up has the type that it sends.
    """
    if not ring.form.wide_sums or ring.form.by_collectives:
        return jnp.dtype(kind)
    short = jnp.issubdtype(kind, jnp.floating) and jnp.dtype(kind).itemsize < 4
    return jnp.dtype(jnp.float32) if short else jnp.dtype(kind)


def _total(parts: Sequence[jax.Array]) -> jax.Array:
    return functools.reduce(lambda one, two: one + two, parts)


def _joined(ring: Ring, slices: Sequence[jax.Array]) -> jax.Array:
    """All slices in the order of arrival, which is as good as any for a sum."""
    if len(slices) == 1:
        return slices[0]
    return lax.concatenate(slices, ring.dimension + ring.by_rank)


def _cut(ring: Ring, rows: Rows) -> Slices | Uncut:
    return rows if isinstance(rows, tuple) else Uncut(ring, rows)


def _summed(ring: Ring, one: Rows, other: Rows, kind: jnp.dtype) -> jax.Array:
    """The gradient of a weight over all slices together.

    What is there as one stays, and the other's slices are put where they belong. Where
    slices are in the order of ranks they stay, for they are what was gathered, and that
    is the larger one.
    """
    if ring.by_rank or (isinstance(one, tuple) and isinstance(other, tuple)):
        x, dy = (
            _joined(ring, rows) if isinstance(rows, tuple) else at_once(ring, rows)
            for rows in (one, other)
        )
    else:
        x, dy = (
            assembled(ring, rows) if isinstance(rows, tuple) else rows
            for rows in (one, other)
        )
    return weight_gradient(x, dy, kind)


def _multiply(
    ring: Ring, x: jax.Array, weights: Several
) -> tuple[tuple[Several, ...], Slices]:
    def work(piece: jax.Array) -> Several:
        made: Several = ()
        for w in weights:
            made = (*made, times(after(piece, made[-1] if made else None), w))
        return made

    results, slices = gather_slices(ring, x, work)
    return tuple(cast("list[Several]", results)), tuple(slices)


def _multiply_together(
    ring: Ring, x: jax.Array, weights: Several
) -> tuple[Several, Slices]:
    wholes = [Assembly(ring) for _ in weights]

    def work(piece: jax.Array) -> Several:
        made: Several = ()
        for w, whole in zip(weights, wholes, strict=True):
            product = times(after(piece, made[-1] if made else None), w)
            made = (*made, whole.put(product))
        return made

    _, slices = gather_slices(ring, x, work)
    return tuple(whole.whole() for whole in wholes), tuple(slices)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def gathered_times(ring: Ring, x: jax.Array, weights: Several) -> tuple[Several, ...]:
    """For every slice that arrives, its products with the weights."""
    return _multiply(ring, x, weights)[0]


def _gather_forward(
    ring: Ring, x: jax.Array, weights: Several
) -> tuple[tuple[Several, ...], tuple[Slices, Several]]:
    results, slices = _multiply(ring, x, weights)
    return results, (slices if ring.form.keep_gathered else (x,), weights)


def _gather_backward(
    ring: Ring, kept: tuple[Slices, Several], dys: tuple[Several, ...]
) -> tuple[jax.Array, Several]:
    return _gather_gradients(ring, kept, [*zip(*dys, strict=True)])


gathered_times.defvjp(_gather_forward, _gather_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def gathered_times_whole(ring: Ring, x: jax.Array, weights: Several) -> Several:
    """All rows' products with each weight, put together as slices arrive."""
    return _multiply_together(ring, x, weights)[0]


def _whole_forward(
    ring: Ring, x: jax.Array, weights: Several
) -> tuple[Several, tuple[Slices, Several]]:
    results, slices = _multiply_together(ring, x, weights)
    return results, (slices if ring.form.keep_gathered else (x,), weights)


def _whole_backward(
    ring: Ring, kept: tuple[Slices, Several], dys: Several
) -> tuple[jax.Array, Several]:
    return _gather_gradients(ring, kept, dys)


gathered_times_whole.defvjp(_whole_forward, _whole_backward)


def _gather_gradients(
    ring: Ring, kept: tuple[Slices, Several], dys: Sequence[Rows]
) -> tuple[jax.Array, Several]:
    """Of the rows and the weights, for the gradients of each weight's products."""
    slices, weights = kept
    if not ring.form.keep_gathered:
        # Behind a barrier, so that it is not merged with that of the forward pass.
        again = lax.optimization_barrier(slices[0])
        slices = tuple(gather_slices(ring, again, lambda piece: None)[1])
    kind, sums = slices[0].dtype, sums_of(ring, slices[0].dtype)
    dws: list[jax.Array | None] = [None] * len(weights)
    cut = [_cut(ring, dy) for dy in dys]

    def share(number: int, earlier: object, came: jax.Array | None) -> object:
        total = came
        pieces: list[jax.Array] = []
        for rows, w in zip(cut, weights, strict=True):
            pieces.append(piece_of(rows, number, earlier))
            total = plus(times_transposed(pieces[-1], w, sums), total)
        assert total is not None
        if not ring.form.whole_weights:
            last = total
            for place, dy in enumerate(pieces):
                piece = after(slices[number], last)
                last = dws[place] = _added(dws[place], piece, after(dy, last))
            total, *dws[:] = lax.optimization_barrier((total, *dws))
        return total, tuple(dws) if not ring.form.whole_weights else ()

    dx = scatter_slices(ring, share, kind)
    if not ring.form.whole_weights:
        added = cast("list[jax.Array]", dws)
        return dx, tuple(
            dw.astype(w.dtype) for dw, w in zip(added, weights, strict=True)
        )
    return dx, tuple(
        _summed(ring, slices, dy, w.dtype) for dy, w in zip(dys, weights, strict=True)
    )


def _added(total: jax.Array | None, x: jax.Array, dy: jax.Array) -> jax.Array:
    return plus(weight_gradient(x, dy, jnp.dtype(jnp.float32)), total)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def times_scattered(ring: Ring, rows: Rows, weight: jax.Array) -> jax.Array:
    """The sum over ranks of the rows' products, where each slice belongs."""
    cut = _cut(ring, rows)
    kind = jnp.result_type(rows[0] if isinstance(rows, tuple) else rows, weight)

    def share(number: int, earlier: object, came: jax.Array | None) -> object:
        made = times(piece_of(cut, number, earlier), weight, sums_of(ring, kind))
        return plus(made, came), ()

    return scatter_slices(ring, share, kind)


def _scatter_forward(
    ring: Ring, rows: Rows, weight: jax.Array
) -> tuple[jax.Array, tuple[Rows, jax.Array]]:
    return times_scattered(ring, rows, weight), (rows, weight)


def _scatter_backward(
    ring: Ring, kept: tuple[Rows, jax.Array], dz: jax.Array
) -> tuple[Rows, jax.Array]:
    rows, weight = kept
    apart = isinstance(rows, tuple)
    kind = rows[0].dtype if apart else rows.dtype
    cut, dx = _cut(ring, rows), Assembly(ring)
    dw: jax.Array | None = None
    number = 0

    def work(piece: jax.Array) -> Several:
        nonlocal dw, number
        made = times_transposed(piece, weight, kind)
        if not apart:
            made = dx.put(made)
        if ring.form.whole_weights:
            return (made,)
        x = piece_of(cut, number, made)
        dw = _added(dw, x, after(piece, made))
        number += 1
        both = lax.optimization_barrier((made, dw))
        dw = both[1]
        return both

    results, dzs = gather_slices(ring, dz, work)
    if dw is None:
        dw = _summed(ring, rows, tuple(dzs), weight.dtype)
    found = cast("list[Several]", results)
    drows = tuple(several[0] for several in found) if apart else dx.whole()
    return drows, dw.astype(weight.dtype)


times_scattered.defvjp(_scatter_forward, _scatter_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def put_together(ring: Ring, slices: Slices) -> jax.Array:
    """`assembled`, with a gradient that takes apart."""
    return assembled(ring, slices)


put_together.defvjp(
    lambda ring, slices: (assembled(ring, slices), None),
    lambda ring, kept, whole: (taken_apart(ring, whole),),
)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def take_apart(ring: Ring, whole: jax.Array) -> Slices:
    """`taken_apart`, with a gradient that puts together."""
    return taken_apart(ring, whole)


take_apart.defvjp(
    lambda ring, whole: (taken_apart(ring, whole), None),
    lambda ring, kept, slices: (assembled(ring, slices),),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Reduction:
    """A sum over all ranks of a mesh axis, of rows in parts.

    Attributes:
        axis_name: The mesh axis.
        ring: The ranks and their slices, where rows divide over them.
    """

    axis_name: str
    ring: Ring


def _reduced(reduction: Reduction, x: jax.Array, weight: jax.Array) -> jax.Array:
    ring = reduction.ring
    if ring.form.by_collectives:
        made = (times(ring.take(x, start, size), weight) for start, size in ring.cuts)
        total = functools.partial(lax.psum, axis_name=ring.axis_name)
        return _joined(ring, in_turn(total, made))
    own = times_scattered(ring, x, weight)
    # Nothing is left to compute behind which messages could hide, and only this
    # collective says that all ranks then hold the same.
    return lax.all_gather(
        own, ring.axis_name, axis=ring.dimension, tiled=True, to="invarying"
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def times_reduced(reduction: Reduction, x: jax.Array, weight: jax.Array) -> jax.Array:
    """The sum over ranks of `x @ weight`, on all of them."""
    return _reduced(reduction, x, weight)


def _reduce_forward(
    reduction: Reduction, x: jax.Array, weight: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _reduced(reduction, x, weight), (x, weight)


def _reduce_backward(
    reduction: Reduction, kept: tuple[jax.Array, jax.Array], dy: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, weight = kept
    ring = reduction.ring

    def plain(partial: jax.Array) -> jax.Array:
        return lax.psum(partial, reduction.axis_name)

    shape = jax.eval_shape(lambda: times(x, weight))
    parts = ring.cuts if ring.form.by_collectives else ((0, x.shape[ring.dimension]),)
    dxs: list[jax.Array] = []
    dys: list[jax.Array] = []
    dw: jax.Array | None = None
    for start, size in parts:
        aval = list(shape.shape)
        aval[ring.dimension] = size
        like = _like(shape, tuple(aval))
        # jax knows whether the transpose is another sum or only a mark.
        (part,) = jax.linear_transpose(plain, like)(ring.take(dy, start, size))
        dys.append(part)
        if not ring.form.whole_weights:
            dw = _added(dw, ring.take(x, start, size), part)
        dxs.append(times_transposed(part, weight, x.dtype))
    if dw is None:
        dw = weight_gradient(x, _joined(ring, dys), weight.dtype)
    return _joined(ring, dxs), dw.astype(weight.dtype)


def _like(found: jax.ShapeDtypeStruct, shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    return found.update(shape=shape)


times_reduced.defvjp(_reduce_forward, _reduce_backward)
