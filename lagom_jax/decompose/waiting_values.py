"""Values of a program that wait, so that a ring of messages can make them in slices.

A gather is not run before a matmul asks for its rows: then each slice is multiplied
while the next is under way. A matmul whose result is only scattered is not run before
it is: then each slice's sums leave while the next is multiplied. Whoever else asks for
such a value gets the whole.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from lagom_jax.decompose.flat_program import FlatProgram, Step, run_step
from lagom_jax.decompose.form import Form, cut_evenly
from lagom_jax.decompose.ring_slices import (
    Ring,
    Slices,
    after,
    assembled,
    gather_slices,
    in_turn,
    plus,
    ring_of,
    scatter_slices,
    taken_apart,
)
from lagom_jax.decompose.sliced_matmul import sums_of


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

    def taken_apart(self, ring: Ring) -> tuple[Slices | None, Slices | None]:
        """The slices of its operands."""
        one, other = (
            None if operand is None else _slices_of(ring, operand, d)
            for operand, d in zip(self.operands, self.dimensions, strict=True)
        )
        return one, other

    def plus(self, pieces: Sequence[Any], total: Any) -> Any:
        """A slice's share, and what there is already."""
        made = run_step(self.step, pieces, _adding_in(self.step, _wide(self._kind)))[0]
        return plus(made, total)

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
        self, matmuls: Sequence[tuple[Step, int, Any]], sums: Sequence[RowSum] = ()
    ) -> tuple[Arrived, list[Any]]:
        """The rows as they arrived, their products, and after these the sums.

        Args:
            matmuls: Each with the place of the rows among its operands, and the other
                operand.
            sums: Matmuls that sum over the rows, slice by slice.
        """
        params = self.step.equation.params
        d = params["all_gather_dimension"]
        ring = _ring(params, self.rows.shape[d], d, self.form)
        apart = [one.taken_apart(ring) for one in sums]
        totals: list[Any] = [None] * len(sums)
        number = 0

        def work(piece: Any) -> tuple[Any, ...]:
            nonlocal number
            made: tuple[Any, ...] = ()
            for step, place, other in matmuls:
                rows = after(piece, made[-1] if made else None)
                given = [rows, other] if place == 0 else [other, rows]
                made = (*made, run_step(step, given)[0])
            if not sums:
                return made
            last: Any = made or None
            for n, (one, operands) in enumerate(zip(sums, apart, strict=True)):
                given = [piece if x is None else x[number] for x in operands]
                given = [after(x, last) for x in given]
                last = totals[n] = one.plus(given, totals[n])
            number += 1
            made, kept = lax.optimization_barrier((made, tuple(totals)))
            totals[:] = kept
            return (*made, *kept)

        results, slices = gather_slices(ring, self.rows, work)
        products: list[Any] = []
        for place, (step, operand, _) in enumerate(matmuls):
            out = result_dimension(step, operand, d)
            assert out is not None
            pieces = [made[place] for made in results]  # type: ignore[index]
            products.append(assembled(dataclasses.replace(ring, dimension=out), pieces))
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
        rows = scatter.equation.invars[0].aval.shape[out] // params["axis_size"]
        ring = _ring(params, rows, out, form)
        parts: list[tuple[Step, tuple[Any, Any], int, Slices]] = []
        for step, operands in self.terms:
            place, d = _rows_of(step, out)
            parts.append((step, operands, place, _slices_of(ring, operands[place], d)))
        apart = [one.taken_apart(ring) for one in sums]
        totals: list[Any] = [None] * len(sums)

        def share(number: int, earlier: Any, came: Any) -> Any:
            total: Any = came
            for step, operands, place, pieces in parts:
                given = list(operands)
                given[place] = after(pieces[number], earlier)
                made = run_step(step, given, _adding_in(step, sums_of(ring, kind)))[0]
                total = plus(made, total)
            last = total
            for n, (one, operands) in enumerate(zip(sums, apart, strict=True)):
                given = [after(x[number], last) for x in operands if x is not None]
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
        out = self._cheapest(collective, form.slices)
        places = [_rows_of(step, out) for step, _ in self.terms]
        rows = collective.equation.invars[0].aval.shape[out]

        def parts() -> Iterator[Any]:
            made: Any = None
            for start, size in cut_evenly(rows, form.slices):
                earlier, made = made, None
                for (step, operands), (at, d) in zip(self.terms, places, strict=True):
                    given = list(operands)
                    piece = lax.slice_in_dim(given[at], start, start + size, axis=d)
                    given[at] = after(piece, earlier)
                    made = plus(run_step(step, given)[0], made)
                yield made

        pieces = in_turn(lambda made: run_step(collective, [made])[0], parts())
        return lax.concatenate(pieces, out) if len(pieces) > 1 else pieces[0]

    def alone(self, collective: Step) -> list[int]:
        """The dimensions in `rows` that a collective does not cut."""
        cut = collective.equation.params.get("scatter_dimension")
        return [d for d in self.rows if d != cut]

    def _cheapest(self, collective: Step, slices: int) -> int:
        """The dimension to cut: one that divides if any, of the smallest operands."""
        shape = collective.equation.invars[0].aval.shape

        def price(d: int) -> tuple[bool, bool, int, int]:
            cut = sum(
                operands[_rows_of(step, d)[0]].size for step, operands in self.terms
            )
            return shape[d] < slices, shape[d] % slices != 0, cut, d

        return min(self.alone(collective), key=price)


Waiting = Gathered | Arrived | Product


def _ring(params: Any, rows: int, dimension: int, form: Form) -> Ring:
    (axis,) = axes_of(params)
    return ring_of(axis, params["axis_size"], rows, dimension, form)


def _slices_of(ring: Ring, operand: Any, dimension: int) -> Slices:
    there = dataclasses.replace(ring, dimension=dimension)
    if isinstance(operand, Arrived):
        if operand.serves(there):
            return operand.slices
        operand = operand.whole()
    return taken_apart(there, operand)


def _rows_of(step: Step, out: int) -> tuple[int, int]:
    found = operand_dimension(step, out)
    assert found is not None
    return found


def _adding_in(step: Step, kind: Any) -> dict[str, Any]:
    return {**step.equation.params, "preferred_element_type": kind}


def _wide(kind: Any) -> Any:
    """float32 for shorter types: what is added up is not rounded in between."""
    short = jnp.issubdtype(kind, jnp.floating) and jnp.dtype(kind).itemsize < 4
    return jnp.dtype(jnp.float32) if short else jnp.dtype(kind)


def axes_of(params: Any) -> tuple[str, ...]:
    """The mesh axes of a collective.

    Example:
        >>> axes_of({"axis_name": "t"}), axes_of({"axis_name": ("t", "u")})
        (('t',), ('t', 'u'))
    """
    named = params["axis_name"]
    return tuple(named) if isinstance(named, tuple | list) else (named,)


def result_dimension(matmul: Step, place: int, d: int) -> int | None:
    """The dimension of a matmul's result that is one of an operand's; None for none."""
    (left, right), (left_batch, right_batch) = _dimensions(matmul)
    summed, batch = (left, left_batch) if place == 0 else (right, right_batch)
    if d in (*summed, *batch):
        return None
    shapes = [variable.aval.shape for variable in matmul.equation.invars]
    taken = (*summed, *batch)
    free = [one for one in range(len(shapes[place])) if one not in taken]
    before = len(left_batch)
    if place == 1:
        before += len(shapes[0]) - len(left) - len(left_batch)
    return before + free.index(d)


def operand_dimension(matmul: Step, out: int) -> tuple[int, int] | None:
    """The operand and its dimension that one of a matmul's result is; None for none."""
    for place, variable in enumerate(matmul.equation.invars):
        for d in range(len(variable.aval.shape)):
            if result_dimension(matmul, place, d) == out:
                return place, d
    return None


def summed_dimensions(matmul: Step, place: int, d: int) -> tuple[int, int] | None:
    """Of both operands of a matmul, the one that it sums over with one of an operand's.

    Example:
        >>> import jax
        >>> from lagom_jax.decompose.flat_program import flatten
        >>> x, y = jnp.ones((2, 3)), jnp.ones((3, 4))
        >>> (matmul,) = flatten(jax.make_jaxpr(jnp.dot)(x, y)).steps
        >>> summed_dimensions(matmul, 0, 1), summed_dimensions(matmul, 0, 0)
        ((1, 0), None)
    """
    (left, right), _ = _dimensions(matmul)
    pairs = [*zip(left, right, strict=True)]
    return next((pair for pair in pairs if pair[place] == d), None)


def _dimensions(matmul: Step) -> Any:
    return matmul.equation.params["dimension_numbers"]


def users_of(program: FlatProgram) -> dict[int, list[Step]]:
    """The steps that need each value; a result of the program has one that is None."""
    found: dict[int, list[Any]] = {}
    for step in program.steps:
        for number in step.inputs:
            found.setdefault(number, []).append(step)
    for number in program.outputs:
        found.setdefault(number, []).append(None)
    return found
