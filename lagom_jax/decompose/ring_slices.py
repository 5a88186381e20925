"""Slices of rows as ranks pass them on, and the two walks through them.

All ranks hold blocks of rows of something larger. A rank counts blocks from its own:
slice (i, j) is part j of the block i places upstream, which is the i-th to arrive. In
these terms the program is the same on every rank, and nothing has to be looked up at an
offset that only the rank knows. Gathering begins with the rank's own block, which
needs no message; scattering ends with it, so that no message is left to wait for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from lagom_jax.decompose.form import PLAIN, DecomposeError, Form, cut_evenly

Slices = tuple[jax.Array, ...]
Made = tuple[jax.Array, object]
"""A share of a sum, and what has to be there before the next is made."""


@dataclasses.dataclass(frozen=True, slots=True)
class Ring:
    """The ranks of a mesh axis and the slices that travel between them.

    Attributes:
        axis_name: The mesh axis.
        ranks: Ranks along it.
        rows: Rows of each rank's block.
        dimension: The dimension that rows are counted along.
        form: How it is cut.
        by_rank: Whether parts of collectives have one more axis in front, of the ranks
            that their rows are of: XLA gathers and scatters along the first axis in
            memory, and would transpose what it has along another.

    Example:
        >>> ring = Ring("t", ranks=4, rows=5, dimension=0, form=Form("ring", slices=2))
        >>> ring.cuts, ring.count
        (((0, 3), (3, 2)), 8)
    """

    axis_name: str
    ranks: int
    rows: int
    dimension: int
    form: Form
    by_rank: bool = False

    @property
    def cuts(self) -> tuple[tuple[int, int], ...]:
        """Start and size of each part of a block."""
        return cut_evenly(self.rows, self.form.parts)

    @property
    def steps(self) -> int:
        """Blocks that arrive one after the other, the own included."""
        return 1 if self.form.by_collectives else self.ranks

    @property
    def count(self) -> int:
        """Slices in all."""
        return self.steps * len(self.cuts)

    def direction(self, part: int) -> int:
        """1 where a part is passed on to the next rank, -1 to the one before."""
        return -1 if self.form.both_ways and part % 2 else 1

    def pass_on(self, x: jax.Array, places: int) -> jax.Array:
        """Sends `x` so many places on, and receives as much from there before."""
        n = self.ranks
        pairs = [(rank, (rank + places) % n) for rank in range(n)]
        return lax.ppermute(x, self.axis_name, pairs)

    @property
    def moved_along(self) -> int:
        """The axis that collectives gather and scatter along."""
        return 0 if self.by_rank else self.dimension

    def among_examples(self, x: jax.Array) -> jax.Array:
        """A slice with the axis of ranks, if it has one, made part of the first."""
        if not self.by_rank:
            return x
        return x.reshape(self.ranks * x.shape[1], *x.shape[2:])

    def by_itself(self, x: jax.Array) -> jax.Array:
        """The reverse: such a slice with an axis of ranks."""
        if not self.by_rank:
            return x
        return x.reshape(self.ranks, x.shape[0] // self.ranks, *x.shape[1:])

    def scattered(self, x: jax.Array) -> jax.Array:
        """The sums over all ranks of a rank's own rows."""
        return lax.psum_scatter(
            x,
            self.axis_name,
            scatter_dimension=self.moved_along,
            tiled=not self.by_rank,
        )

    def take(self, x: jax.Array, start: int | jax.Array, size: int) -> jax.Array:
        """So many rows of `x`."""
        return lax.dynamic_slice_in_dim(x, start, size, self.dimension)

    def place(self, number: int) -> tuple[jax.Array, int]:
        """The first row of a slice in the whole, and its rows.

        Args:
            number: Its place in the order of arrival.
        """
        step, part = divmod(number, len(self.cuts))
        start, size = self.cuts[part]
        rank = lax.axis_index(self.axis_name)
        block = (rank - step * self.direction(part)) % self.ranks
        return block * self.rows + start, size


def gather_slices(
    ring: Ring, x: jax.Array, work: Callable[[jax.Array], object]
) -> tuple[list[object], list[jax.Array]]:
    """Does some work on every slice that arrives, while the next is under way.

    Args:
        ring: The ranks and their slices.
        x: The rank's own rows.
        work: What to do with the rows of a slice.

    Returns:
        The results and the slices themselves, both in the order of arrival.
    """
    own = [ring.take(x, start, size) for start, size in ring.cuts]
    if ring.form.by_collectives:
        return _in_chunks(ring, own, work)
    held = own
    results: list[object] = []
    slices: list[jax.Array] = []
    for step in range(ring.steps):
        coming: list[jax.Array] = []
        for part, piece in enumerate(held):
            # Not before the last slice's work is done: XLA would send all slices first.
            last = results[-1] if results else None
            taken = _surely_after(piece, last)
            if step < ring.steps - 1:
                coming.append(
                    ring.pass_on(taken, ring.direction(part))
                    if ring.form.kind == "ring"
                    else ring.pass_on(_surely_after(own[part], last), step + 1)
                )
            results.append(work(taken))
        slices += held
        held = coming
    return results, slices


def _in_chunks(
    ring: Ring, own: Sequence[jax.Array], work: Callable[[jax.Array], object]
) -> tuple[list[object], list[jax.Array]]:
    """The same by gathers, each beside the work on the chunk before.

    A gather begins once the one before is done, and the work before that: left to
    itself XLA gathers all chunks and then begins to work.
    """
    came: list[jax.Array] = []
    results: list[object] = []

    def take(chunk: jax.Array) -> None:
        results.append(work(after(chunk, results[-1] if results else None)))

    for piece in own:
        begun = after(piece, (*came[-1:], *results[-1:]) or None)
        coming = lax.all_gather(
            begun, ring.axis_name, axis=ring.moved_along, tiled=not ring.by_rank
        )
        if came:
            take(came[-1])
        came.append(coming)
    take(came[-1])
    return results, came


def after(x: jax.Array, earlier: object) -> jax.Array:
    """`x`, once something else has been computed.

    Slices of one matmul that do not depend on each other are merged into one again by
    XLA, which then waits for all of them. In this order they stay apart; so do small
    matmuls of the same rows, whose weights XLA would put together for every slice.
    """
    if earlier is None:
        return x
    return lax.optimization_barrier((x, earlier))[0]


def _surely_after(x: jax.Array, earlier: object) -> jax.Array:
    """The same, also where nobody else needs what has been computed.

    XLA drops from a barrier what nothing but that barrier takes, such as the product of
    a matmul that applies an activation by itself. From two it drops nothing.
    """
    if earlier is None:
        return x
    return lax.optimization_barrier((earlier, after(x, earlier)))[1]


def in_turn(
    collective: Callable[[jax.Array], jax.Array], pieces: Iterable[jax.Array]
) -> list[jax.Array]:
    """The collective of each piece, one after the other.

    They travel so anyhow. But where XLA may choose their order, it sends all of them
    when the last piece is made, or waits for all before it takes the first.
    """
    found: list[jax.Array] = []
    for piece in pieces:
        found.append(collective(after(piece, found[-1] if found else None)))
    return found


def plus(made: jax.Array, total: jax.Array | None) -> jax.Array:
    """A matmul's result and what it is to be added to.

    In this order XLA lets the matmul add, even where the other is a matmul that does.
    """
    return made if total is None else made + total.astype(made.dtype)


def scatter_slices(
    ring: Ring, share: Callable[[int, object, jax.Array | None], Any], kind: jnp.dtype
) -> jax.Array:
    """Adds up all ranks' results for each slice, where the slice belongs.

    Args:
        ring: The ranks and their slices.
        share: The rank's own share of the result for the slice of that number, to be
            computed `after` what was computed before it, and added to the third where
            that is given; what is more precise than `kind` is added before it is
            rounded. With it comes what else has to be computed before the next share.
        kind: The type of what travels, and of the result.

    Returns:
        The sums for the rank's own rows.
    """
    parts = range(len(ring.cuts))

    def work(number: int, earlier: object, came: jax.Array | None = None) -> Made:
        if ring.count == 1:
            # The plain form: there is nothing to keep apart.
            return share(number, None, came)
        # Behind a barrier: what arrives would otherwise be an operand of the matmul,
        # which then waits for it instead of hiding it.
        both = lax.optimization_barrier(share(number, earlier, came))
        return both[0], both

    def in_parts() -> Iterator[jax.Array]:
        earlier: object = None
        for part in parts:
            made, earlier = work(part, earlier)
            yield made.astype(kind)

    if ring.form.by_collectives:
        sums = in_turn(ring.scattered, in_parts())
    elif ring.form.kind == "ring":
        sums = _passed_on(ring, work, kind)
    else:
        sums = _sent_home(ring, work, kind)
    return lax.concatenate(sums, ring.dimension) if len(sums) > 1 else sums[0]


def _passed_on(
    ring: Ring, work: Callable[..., Made], kind: jnp.dtype
) -> list[jax.Array]:
    """Sums that grow on their way; the rank's own block comes last."""
    parts = len(ring.cuts)
    sums: list[jax.Array] = []
    earlier: object = None
    for step in range(ring.steps):
        block = (step + 1) % ring.ranks
        for part in range(parts):
            number = block * parts + part
            if not step:
                made, earlier = work(number, earlier)
                sums.append(made.astype(kind))
                continue
            came = ring.pass_on(sums[part], ring.direction(part))
            if ring.form.sums_in_matmul:
                made, earlier = work(number, earlier, came)
            else:
                made, earlier = work(number, earlier)
                made = plus(came.astype(made.dtype), made)
            sums[part] = made.astype(kind)
    return sums


def _sent_home(
    ring: Ring, work: Callable[..., Made], kind: jnp.dtype
) -> list[jax.Array]:
    """Every share sent straight to its owner, who adds each as it arrives.

    It does so while the next is under way. Its own share comes last: that matmul adds
    to what is there by then, and only the message that it hides is added after it.
    """
    parts = len(ring.cuts)
    sums: list[jax.Array | None] = [None] * parts
    came: dict[int, jax.Array] = {}
    sent: object = None
    earlier: object = None
    for number in range(parts, ring.count):
        step, part = divmod(number, parts)
        made, _ = work(number, earlier)
        share: jax.Array = made.astype(kind)
        earlier = sent = share
        for place, last in came.items():
            # While the next is under way, and before more is made: XLA would keep all
            # that arrives, and add it up at the end.
            total, so_far = after(last, share), sums[place]
            if so_far is not None:
                total = plus(total.astype(made.dtype), so_far)
            sums[place] = total
            earlier = (share, total)
        came = {part: ring.pass_on(share, -step)}
    found: list[jax.Array] = []
    # A matmul adds in place only to what no barrier takes as well.
    earlier = sent
    for part, total in enumerate(sums):
        own, earlier = work(part, earlier, total)
        found.append((plus(own, came[part]) if part in came else own).astype(kind))
    return found


def ring_of(
    axis_name: str,
    ranks: int,
    rows: int,
    dimension: int,
    form: Form,
    examples: int = 1,
) -> Ring:
    """The ring for so many rows of each rank.

    Args:
        axis_name: The mesh axis.
        ranks: Ranks along it.
        rows: Of each rank.
        dimension: The dimension that rows are counted along.
        form: How they are cut. Parts of collectives, and the whole, are in the order of
            ranks; the plain form is not.
        examples: What stands before the rows. Where that is one, they are in the order
            of ranks as they are.

    Raises:
        DecomposeError: There is nothing to cut.

    Example:
        >>> two = Form("chunks", slices=2)
        >>> [ring_of("t", 4, 5, 1, one, examples=8).by_rank for one in (PLAIN, two)]
        [False, True]
    """
    if rows < 1:
        raise DecomposeError("there are no rows to cut: the dimension has size 0")
    plain = form.kind == PLAIN.kind and form.slices == 1
    by_rank = form.by_collectives and not plain and examples > 1
    return Ring(axis_name, ranks, rows, dimension, form, by_rank)
