"""Values of a program that wait, so that a ring of messages can make them in slices.

A gather is not run before a matmul asks for its rows: then each slice is multiplied
while the next is under way. A matmul whose result is only scattered is not run before
it is: then each slice's sums leave while the next is multiplied. Whoever else asks for
such a value gets the whole.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from lagom_jax.decompose.assembly import Assembly, Uncut, assembled, piece_of
from lagom_jax.decompose.flat_program import Step, run_step
from lagom_jax.decompose.form import WHOLE, Form, cut_evenly
from lagom_jax.decompose.matmul_dimensions import (
    adding_in,
    axes_of,
    operand_dimension,
    result_dimension,
    rows_of,
    summing_ranks,
    times_by_rank,
)
from lagom_jax.decompose.ring_slices import (
    Ring,
    Slices,
    after,
    gather_slices,
    in_turn,
    plus,
    ring_of,
    scatter_slices,
)
from lagom_jax.decompose.sites import REDUCTIONS
from lagom_jax.decompose.sliced_matmul import sums_of

Rows = Slices | Uncut
"""Slices that are there, or rows that are cut when a slice is needed."""


@dataclasses.dataclass(frozen=True, slots=True)
class RowSum:
    """A matmul that sums over the rows that are in slices, as a weight's gradient does.

    Attributes:
        step: The matmul.
        operands: Its operands; None for what a ring brings.
        dimensions: Of each, the dimension of the rows.
    """

    step: Step
    operands: tuple[Any, Any]
    dimensions: tuple[int, int]

    def taken_apart(self, ring: Ring) -> tuple[Rows | None, Rows | None]:
        """Its operands, for a slice of each."""
        one, other = (
            None if operand is None else _slices_of(ring, operand, d)
            for operand, d in zip(self.operands, self.dimensions, strict=True)
        )
        return one, other

    def plus(self, pieces: Sequence[Any], total: Any) -> Any:
        """A slice's share, and what there is already."""
        params = adding_in(self.step, _wide(self._kind))
        if pieces[0].ndim > self.step.equation.invars[0].aval.ndim:
            params = summing_ranks(params)
        return plus(run_step(self.step, pieces, params)[0], total)

    def smaller_beside(self, number: int) -> bool:
        """True if the other operand than that has no more elements."""
        sizes = [variable.aval.size for variable in self.step.equation.invars]
        place = self.step.inputs.index(number)
        return sizes[1 - place] <= sizes[place]

    def at_once(self, ring: Ring) -> Any:
        """The sum over all rows of ranks that are there."""
        one, other = self.taken_apart(ring)
        assert one is not None
        assert other is not None
        params = summing_ranks(self.step.equation.params)
        given = [piece_of(rows, 0, None) for rows in (one, other)]
        return run_step(self.step, given, params)[0]

    def rounded(self, total: Any) -> Any:
        """The whole sum, as the matmul has it."""
        return total.astype(self._kind)

    @property
    def _kind(self) -> Any:
        return self.step.equation.outvars[0].aval.dtype


@dataclasses.dataclass(frozen=True, slots=True)
class Gathered:
    """Rows of all ranks that nobody has asked for yet.

    Attributes:
        step: The all-gather.
        rows: This rank's own.
        form: How they travel.
    """

    step: Step
    rows: Any
    form: Form

    def whole(self) -> Any:
        """The rows as the all-gather gives them."""
        return run_step(self.step, [self.rows])[0]

    def times(
        self,
        matmuls: Sequence[tuple[Step, int, Any]],
        sums: Sequence[RowSum] = (),
        by_element: Collection[Step] = (),
    ) -> tuple[Arrived, list[Any]]:
        """The rows as they arrived, their products, and after these the sums.

        Args:
            matmuls: Each with the place of the rows among its operands, and the other
                operand.
            sums: Matmuls that sum over the rows, slice by slice.
            by_element: Those of the first whose products are only taken element by
                element.
        """
        params = self.step.equation.params
        d = params["all_gather_dimension"]
        ring = _ring(params, self.rows.shape, d, self.form)
        apart = [one.taken_apart(ring) for one in sums]
        totals: list[Any] = [None] * len(sums)
        number = 0
        wholes = [
            Assembly(ring, result_dimension(step, place, d), last=step in by_element)
            for step, place, _ in matmuls
        ]

        def work(piece: Any) -> tuple[Any, ...]:
            nonlocal number
            made: tuple[Any, ...] = ()
            for whole, (step, place, other) in zip(wholes, matmuls, strict=True):
                rows = after(piece, made[-1] if made else None)
                given = [rows, other] if place == 0 else [other, rows]
                at = place if ring.by_rank else None
                made = (*made, whole.put(times_by_rank(step, given, at)))
            if not sums:
                return made
            last: Any = made or None
            for n, (one, operands) in enumerate(zip(sums, apart, strict=True)):
                given = [
                    after(piece, last) if x is None else piece_of(x, number, last)
                    for x in operands
                ]
                last = totals[n] = one.plus(given, totals[n])
            number += 1
            made, kept = lax.optimization_barrier((made, tuple(totals)))
            totals[:] = kept
            return (*made, *kept)

        _, slices = gather_slices(ring, self.rows, work)
        products: list[Any] = [whole.whole() for whole in wholes]
        products += [one.rounded(x) for one, x in zip(sums, totals, strict=True)]
        return Arrived(ring, tuple(slices)), products


@dataclasses.dataclass(frozen=True, slots=True)
class Arrived:
    """Rows of all ranks, slice by slice as they arrived."""

    ring: Ring
    slices: tuple[Any, ...]

    def whole(self) -> Any:
        """The rows where they belong."""
        return assembled(self.ring, self.slices)

    @property
    def by_rank(self) -> bool:
        """True if all rows are there at once, in the order of ranks."""
        return self.ring.by_rank and len(self.slices) == 1

    def serves(self, ring: Ring) -> bool:
        """True if these are the slices of another ring as well."""
        mine, theirs = self.ring.form, ring.form
        alike = dataclasses.replace(ring, form=mine) == self.ring
        cuts = (mine.kind, mine.slices, mine.both_ways)
        return alike and cuts == (theirs.kind, theirs.slices, theirs.both_ways)


@dataclasses.dataclass(frozen=True, slots=True)
class Product:
    """A matmul, or a sum of several, whose result only goes into a collective.

    Attributes:
        terms: The matmuls, each with both operands.
    """

    terms: tuple[tuple[Step, tuple[Any, Any]], ...]

    def plus(self, other: Product) -> Product:
        """The sum of both."""
        return Product((*self.terms, *other.terms))

    def whole(self) -> Any:
        """The result as the matmuls give it."""
        found = [run_step(step, [*operands])[0] for step, operands in self.terms]
        return functools.reduce(jnp.add, found)

    def scattered(
        self, scatter: Step, form: Form, sums: Sequence[RowSum] = ()
    ) -> tuple[Any, list[Any]]:
        """This rank's rows of the sums over all ranks, and sums over the same rows.

        Args:
            scatter: The collective.
            form: How it is cut.
            sums: Matmuls over the same rows, a slice of each between two messages.
        """
        params = scatter.equation.params
        out = params["scatter_dimension"]
        kind = scatter.equation.invars[0].aval.dtype
        ring = self._ring(scatter, form)
        parts: list[tuple[Step, tuple[Any, Any], int, Rows]] = []
        for step, operands in self.terms:
            place, d = rows_of(step, out)
            parts.append((step, operands, place, _slices_of(ring, operands[place], d)))
        apart = [one.taken_apart(ring) for one in sums]
        totals: list[Any] = [None] * len(sums)

        def share(number: int, earlier: Any, came: Any) -> Any:
            total: Any = came
            for step, operands, place, pieces in parts:
                given = list(operands)
                given[place] = piece_of(pieces, number, earlier)
                wide = adding_in(step, sums_of(ring, kind))
                at = place if ring.by_rank else None
                total = plus(times_by_rank(step, given, at, wide), total)
            last = total
            for n, (one, operands) in enumerate(zip(sums, apart, strict=True)):
                given = [piece_of(x, number, last) for x in operands if x is not None]
                last = totals[n] = one.plus(given, totals[n])
            if sums:
                total, *totals[:] = lax.optimization_barrier((total, *totals))
            return total, tuple(totals)

        found = scatter_slices(ring, share, kind)
        return found, [one.rounded(x) for one, x in zip(sums, totals, strict=True)]

    @property
    def rows(self) -> list[int]:
        """The dimensions of the result that every matmul takes from one operand."""
        out = self.terms[0][0].equation.outvars[0].aval.ndim
        return [
            d
            for d in range(out)
            if all(operand_dimension(step, d) is not None for step, _ in self.terms)
        ]

    def in_chunks(self, collective: Step, form: Form) -> Any:
        """The collective of it, part by part of a dimension that it leaves alone.

        Cut is the operand with the fewest bytes, for the parts are copied: often the
        weight, since a scatter leaves columns alone, and a sum rows as well.

        Args:
            collective: A scatter, or a sum over ranks.
            form: How it is cut.
        """
        if collective.name in REDUCTIONS:
            return self._in_chunks(collective, form, None)
        ring = self._ring(collective, WHOLE)
        return self._in_chunks(collective, form, ring if ring.by_rank else None)

    def _in_chunks(self, collective: Step, form: Form, ring: Ring | None) -> Any:
        """The same; with a ring, of rows in the order of its ranks."""
        out = self._cheapest(collective, form.slices) if form.slices > 1 else -1
        rows = collective.equation.invars[0].aval.shape[out]
        terms = [
            (step, *_by_rank(step, operands, ring)) for step, operands in self.terms
        ]

        def parts() -> Iterator[Any]:
            made: Any = None
            for start, size in cut_evenly(rows, form.slices):
                earlier, made = made, None
                for step, operands, place in terms:
                    given = list(operands)
                    if form.slices > 1:
                        at, d = rows_of(step, out)
                        d += at == place
                        piece = lax.slice_in_dim(given[at], start, start + size, axis=d)
                        given[at] = after(piece, earlier)
                    made = plus(times_by_rank(step, given, place), made)
                yield made

        def sent(made: Any) -> Any:
            return ring.scattered(made) if ring else run_step(collective, [made])[0]

        pieces = in_turn(sent, parts())
        return lax.concatenate(pieces, out) if len(pieces) > 1 else pieces[0]

    def _ring(self, scatter: Step, form: Form) -> Ring:
        """The ring of a scatter.

        Where its rows are to be in the order of ranks, the operands are transposed in
        place of the result: only where they are smaller.
        """
        out = scatter.equation.params["scatter_dimension"]
        shape = scatter.equation.outvars[0].aval.shape
        ring = _ring(scatter.equation.params, shape, out, form)
        read = sum(
            operands[rows_of(step, out)[0]].size for step, operands in self.terms
        )
        pays = read <= scatter.equation.invars[0].aval.size
        return dataclasses.replace(ring, by_rank=ring.by_rank and pays)

    def alone(self, collective: Step) -> list[int]:
        """The dimensions in `rows` that a collective does not cut."""
        cut = collective.equation.params.get("scatter_dimension")
        return [d for d in self.rows if d != cut]

    def _cheapest(self, collective: Step, slices: int) -> int:
        """The dimension to cut: one that divides if any, of the smallest operands."""
        shape = collective.equation.invars[0].aval.shape

        def price(d: int) -> tuple[bool, bool, int, int]:
            cut = sum(
                operands[rows_of(step, d)[0]].size for step, operands in self.terms
            )
            return shape[d] < slices, shape[d] % slices != 0, cut, d

        return min(self.alone(collective), key=price)


Waiting = Gathered | Arrived | Product


def _ring(params: Any, shape: Sequence[int], dimension: int, form: Form) -> Ring:
    """The ring of a collective, and the shape of each rank's own part."""
    (axis,) = axes_of(params)
    ranks, examples = params["axis_size"], math.prod(shape[:dimension])
    return ring_of(axis, ranks, shape[dimension], dimension, form, examples)


def _by_rank(
    step: Step, operands: Sequence[Any], ring: Ring | None
) -> tuple[list[Any], int | None]:
    """The operands of a matmul with an axis of ranks in front, and whose it is."""
    given = list(operands)
    if ring is None:
        return given, None
    place, d = rows_of(step, ring.dimension)
    given[place] = piece_of(_slices_of(ring, given[place], d), 0, None)
    return given, place


def _slices_of(ring: Ring, operand: Any, dimension: int) -> Rows:
    there = dataclasses.replace(ring, dimension=dimension)
    if isinstance(operand, Arrived):
        if operand.serves(there):
            return operand.slices
        operand = operand.whole()
    return Uncut(there, operand)


def _wide(kind: Any) -> Any:
    """float32 for shorter types: what is added up is not rounded in between."""
    short = jnp.issubdtype(kind, jnp.floating) and jnp.dtype(kind).itemsize < 4
    return jnp.dtype(jnp.float32) if short else jnp.dtype(kind)
