"""Whole rows and their slices: put together as they are made, cut when they are needed.

What is kept is what a step takes in memory beside its operands and its result: of all
slices one is to be sent and one to be received, and no third is to wait.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from lagom_jax.decompose.form import WHOLE
from lagom_jax.decompose.ring_slices import Ring, Slices, after


class Assembly:
    """A whole that slices are put into as they are made, in the order of arrival.

    Whoever makes the next slice `after` what `put` gives has no more than one that is
    not in its place: left to itself XLA writes all of them last, and keeps them until
    then.
    """

    def __init__(
        self, ring: Ring, dimension: int | None = None, *, last: bool = False
    ) -> None:
        """Begins with nothing.

        Args:
            ring: The ranks and their slices.
            dimension: That of the rows; by default the ring's.
            last: Whether slices are put where they belong when all are there. What
                takes the whole element by element then does it in its own kernel.
        """
        d = ring.dimension if dimension is None else dimension
        self._ring = dataclasses.replace(ring, dimension=d)
        self._last = last
        self._pieces: list[jax.Array] = []
        self._made: jax.Array | None = None

    def put(self, piece: jax.Array) -> jax.Array:
        """The array that the next slice waits for: this one, or the whole with it."""
        ring, number = self._ring, len(self._pieces)
        self._pieces.append(piece)
        if self._last or ring.form.by_collectives or ring.count == 1:
            # Interleaved, too, they can only be put together when all are there.
            return piece
        if self._made is None:
            shape = list(piece.shape)
            shape[ring.dimension] = ring.ranks * ring.rows
            # Type and axes of the slices, without a read of their values.
            self._made = lax.full_like(piece, 0, shape=tuple(shape))
        start, _ = ring.place(number)
        self._made = lax.dynamic_update_slice_in_dim(
            self._made, piece, start, ring.dimension
        )
        return self._made

    def whole(self) -> jax.Array:
        """The whole, with all rows where they belong."""
        if self._made is not None:
            return self._made
        if self._last and not self._ring.form.by_collectives:
            return assembled(self._ring, self._pieces)
        return _interleaved(self._ring, self._pieces)


def assembled(ring: Ring, slices: Sequence[jax.Array]) -> jax.Array:
    """The whole of slices that are all there, with all rows where they belong."""
    assembly = Assembly(ring)
    for piece in slices:
        assembly.put(piece)
    return assembly.whole()


@dataclasses.dataclass(frozen=True, slots=True)
class Uncut:
    """Rows that are cut slice by slice, each when it is asked for.

    XLA would copy all slices of one array in one kernel, and keep them until they are
    needed.

    Attributes:
        ring: The ranks and their slices.
        whole: All rows.
    """

    ring: Ring
    whole: jax.Array

    def piece(self, number: int, earlier: object) -> jax.Array:
        """A slice in the order of arrival, cut `after` something else."""
        ring, whole = self.ring, after(self.whole, earlier)
        if not ring.form.by_collectives:
            start, size = ring.place(number)
            return ring.take(whole, start, size)
        d, shape = ring.dimension, whole.shape
        blocks = whole.reshape(*shape[:d], ring.ranks, ring.rows, *shape[d + 1 :])
        start, size = ring.cuts[number]
        if ring.by_rank:
            blocks = jnp.moveaxis(blocks, d, 0)
        found = lax.slice_in_dim(blocks, start, start + size, axis=d + 1)
        if ring.by_rank:
            return found
        return found.reshape(*shape[:d], ring.ranks * size, *shape[d + 1 :])


def piece_of(rows: Slices | Uncut, number: int, earlier: object) -> jax.Array:
    """A slice of that number, `after` something else."""
    if isinstance(rows, Uncut):
        return rows.piece(number, earlier)
    return after(rows[number], earlier)


def at_once(ring: Ring, whole: jax.Array) -> jax.Array:
    """Rows of all ranks as one slice, in the order of ranks where the ring has them.

    Example:
        >>> ring = Ring("t", ranks=2, rows=3, dimension=1, form=WHOLE, by_rank=True)
        >>> at_once(ring, jnp.ones((4, 6, 5))).shape
        (2, 4, 3, 5)
    """
    rows = whole.shape[ring.dimension] // ring.ranks
    uncut = Uncut(dataclasses.replace(ring, form=WHOLE, rows=rows), whole)
    return uncut.piece(0, None)


def taken_apart(ring: Ring, whole: jax.Array) -> Slices:
    """The slices of a whole, in the order of arrival."""
    uncut = Uncut(ring, whole)
    return tuple(uncut.piece(number, None) for number in range(ring.count))


def _interleaved(ring: Ring, slices: Sequence[jax.Array]) -> jax.Array:
    if ring.by_rank:
        d = ring.dimension
        blocks = lax.concatenate(slices, d + 1) if len(slices) > 1 else slices[0]
        shape = blocks.shape[1:]
        whole = jnp.moveaxis(blocks, 0, d)
        return whole.reshape(*shape[:d], ring.ranks * ring.rows, *shape[d + 1 :])
    if len(slices) == 1:
        return slices[0]
    d, shape = ring.dimension, slices[0].shape
    blocks = [
        piece.reshape(*shape[:d], ring.ranks, size, *shape[d + 1 :])
        for piece, (_, size) in zip(slices, ring.cuts, strict=True)
    ]
    whole = lax.concatenate(blocks, d + 1)
    return whole.reshape(*shape[:d], ring.ranks * ring.rows, *shape[d + 1 :])
