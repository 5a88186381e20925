"""Whole layers on slices of the batch, so that one slice's collectives hide another's.

A layer may be cut so only if its examples have nothing to do with each other. That is
looked up in its equations, one by one; where one mixes examples, it is named.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax

from lagom_jax.decompose.dimension_rules import links
from lagom_jax.decompose.flat_program import FlatProgram, flatten, refuse_mixing
from lagom_jax.decompose.form import DecomposeError, cut_evenly

_FIXED = (
    "the layer takes a batch of {batch} examples, but no part of it ({why}): take "
    "sizes from its arguments"
)
Axes = int | None | Sequence[Any]


def half_batches(
    layer: Callable[..., Any],
    *,
    slices: int = 2,
    in_axes: Axes | None = None,
) -> Callable[..., Any]:
    """Runs a layer, or the body of a scan, on independent slices of the batch.

    While the collectives of one slice travel, the layer computes on another. Gradients
    of what the slices share are added up over them.

    Args:
        layer: The layer. Its first argument is an array with the batch in front, or a
            tree of such; the others, as weights, are shared.
        slices: Parts of the batch, as equal as its size allows.
        in_axes: Where it is otherwise: for each argument the dimension of the batch in
            its arrays, or None, as `jax.vmap` takes it.

    Returns:
        A function of the same arguments, with the same results.

    Raises:
        DecomposeError: When it is called: examples mix, or the batch is too small.

    Example:
        >>> import jax.numpy as jnp
        >>> layer = half_batches(lambda x, w: jnp.tanh(x @ w))
        >>> layer(jnp.ones((4, 8)), jnp.ones((8, 8))).shape
        (4, 8)
        >>> mixing = half_batches(lambda x: x - x.mean(0))
        >>> mixing(jnp.ones((4, 8)))  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        ...
        DecomposeError: the layer mixes examples: reduce_sum ...
    """
    if slices < 1:
        raise DecomposeError(f"slices must be 1 or more, not {slices}")

    @functools.wraps(layer)
    def run(*args: Any) -> Any:
        axes = _axes(in_axes, args)
        leaves, tree = jax.tree.flatten(args)
        batch = _batch(leaves, axes)
        if batch < slices:
            raise DecomposeError(
                f"a batch of {batch} cannot be cut in {slices} slices: take fewer, or "
                "a larger batch"
            )
        outs, out_tree, shapes = _batch_axes(layer, tree, leaves, axes)
        results: list[list[Any]] = []
        for start, size in cut_evenly(batch, slices):
            given = [
                x if d is None else lax.slice_in_dim(x, start, start + size, axis=d)
                for x, d in zip(leaves, axes, strict=True)
            ]
            results.append(_slice_of(layer, tree, given, batch))
        joined = [
            pieces[0] if d is None else lax.concatenate(pieces, d)
            for pieces, d in zip(zip(*results, strict=True), outs, strict=True)
        ]
        if [x.shape for x in joined] != shapes:
            raise DecomposeError(
                _FIXED.format(batch=batch, why="other shapes come out")
            )
        return jax.tree.unflatten(out_tree, joined)

    return run


def _slice_of(
    layer: Callable[..., Any], tree: Any, given: list[Any], batch: int
) -> list[Any]:
    try:
        return jax.tree.leaves(layer(*jax.tree.unflatten(tree, given)))
    except (TypeError, ValueError) as error:
        why = str(error).partition("\n")[0]
        raise DecomposeError(_FIXED.format(batch=batch, why=why)) from error


def _axes(in_axes: Axes | None, args: tuple[Any, ...]) -> list[int | None]:
    """The dimension of the batch in every array."""
    given: Any = (0, *(None,) * (len(args) - 1)) if in_axes is None else in_axes
    if isinstance(given, int):
        given = (given,) * len(args)
    if len(given) != len(args):
        raise DecomposeError(
            f"in_axes has {len(given)} entries for {len(args)} arguments: give one each"
        )
    found: list[int | None] = []
    for axis, tree in zip(given, args, strict=True):
        count = len(jax.tree.leaves(tree))
        if axis is None or isinstance(axis, int):
            found += [axis] * count
            continue
        listed = jax.tree.leaves(axis, is_leaf=lambda one: one is None)
        if len(listed) != count:
            raise DecomposeError(
                f"in_axes names {len(listed)} axes for an argument of {count} arrays"
            )
        found += listed
    return found


def _batch(leaves: list[Any], axes: list[int | None]) -> int:
    sizes = {x.shape[d] for x, d in zip(leaves, axes, strict=True) if d is not None}
    if len(sizes) != 1:
        raise DecomposeError(
            "the arrays that are cut have batches of "
            f"{', '.join(map(str, sorted(sizes))) or 'no'} examples: give in_axes so "
            "that it is the same in all"
        )
    return sizes.pop()


def _batch_axes(
    layer: Callable[..., Any],
    tree: Any,
    leaves: list[Any],
    axes: list[int | None],
) -> tuple[list[int | None], Any, list[tuple[int, ...]]]:
    """For every result the dimension of the batch, None without, and the shape."""
    held: list[Any] = []

    def flat(*leaves: Any) -> list[Any]:
        found, out = jax.tree.flatten(layer(*jax.tree.unflatten(tree, leaves)))
        held.append(out)
        return found

    program = flatten(jax.make_jaxpr(flat)(*leaves), through_rules=True)
    dims = _examples(program, axes)
    outs = [dims.get(number) for number in program.outputs]
    shapes = [program.avals[number].shape for number in program.outputs]
    return outs, held[-1], shapes


def _examples(program: FlatProgram, axes: list[int | None]) -> dict[int, int]:
    """For every value that has examples, the dimension that counts them."""
    dims = {
        number: d
        for number, d in zip(program.inputs, axes, strict=True)
        if d is not None
    }
    batch = max(program.avals[number].shape[d] for number, d in dims.items())
    for step in program.steps:
        cut = {
            (place, dims[number])
            for place, number in enumerate(step.inputs)
            if number in dims
        }
        if not cut:
            continue
        for group in links(step.equation):
            results = {
                step.outputs[-1 - place]: d
                for place, d in group
                if place < 0
                and program.avals[step.outputs[-1 - place]].shape[d] % batch == 0
            }
            # An operand that is there twice has to be cut in both places.
            if cut <= set(group) and len(results) == len(step.outputs):
                dims.update(results)
                break
        else:
            refuse_mixing(step)
    return dims
