"""Values of a program that wait, so that a ring of messages can make them in slices.

A gather is not run before a matmul asks for its rows: then each slice is multiplied
while the next is under way. A matmul whose result is only scattered is not run before
it is: then each slice's sums leave while the next is multiplied. Whoever else asks for
such a value gets the whole.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from lagom_jax.decompose.flat_program import FlatProgram, Step
from lagom_jax.decompose.form import Form
from lagom_jax.decompose.ring_slices import (
    Ring,
    Slices,
    after,
    assembled,
    gather_slices,
    plus,
    ring_of,
    scatter_slices,
    taken_apart,
)

Run = Callable[..., list[Any]]
"""Runs a step on values, perhaps with other parameters."""


@dataclasses.dataclass(frozen=True, slots=True)
class Gathered:
    """Rows of all ranks that nobody has asked for yet.

    Attributes:
        step: The all-gather.
        rows: This rank's own.
        form: Of the ring.
        run: Runs steps.
    """

    step: Step
    rows: Any
    form: Form
    run: Run

    def whole(self) -> Any:
        """The rows as the all-gather gives them."""
        return self.run(self.step, [self.rows])[0]

    def times(
        self, matmuls: Sequence[tuple[Step, int, Any]]
    ) -> tuple[Arrived, list[Any]]:
        """The rows as they arrived, and their products.

        Args:
            matmuls: Each with the place of the rows among its operands, and the other
                operand.
        """
        params = self.step.equation.params
        d = params["all_gather_dimension"]
        ring = _ring(params, self.rows.shape[d], d, self.form)

        def work(piece: Any) -> tuple[Any, ...]:
            return tuple(
                self.run(step, [piece, other] if place == 0 else [other, piece])[0]
                for step, place, other in matmuls
            )

        results, slices = gather_slices(ring, self.rows, work)
        products: list[Any] = []
        for number, (step, place, _) in enumerate(matmuls):
            out = result_dimension(step, place, d)
            assert out is not None
            pieces = [made[number] for made in results]  # type: ignore[index]
            products.append(assembled(dataclasses.replace(ring, dimension=out), pieces))
        return Arrived(ring, tuple(slices)), products


@dataclasses.dataclass(frozen=True, slots=True)
class Arrived:
    """Rows of all ranks, slice by slice as they arrived."""

    ring: Ring
    slices: tuple[Any, ...]

    def whole(self) -> Any:
        """The rows where they belong."""
        return assembled(self.ring, self.slices)


@dataclasses.dataclass(frozen=True, slots=True)
class Product:
    """A matmul, or a sum of several, whose result is only scattered.

    Attributes:
        terms: The matmuls, each with both operands.
        form: Of the ring.
        run: Runs steps.
    """

    terms: tuple[tuple[Step, tuple[Any, Any]], ...]
    form: Form
    run: Run

    def plus(self, other: Product) -> Product:
        """The sum of both."""
        return dataclasses.replace(self, terms=(*self.terms, *other.terms))

    def whole(self) -> Any:
        """The result as the matmuls give it."""
        found = [self.run(step, [*operands])[0] for step, operands in self.terms]
        return functools.reduce(jnp.add, found)

    def scattered(self, scatter: Step) -> Any:
        """This rank's rows of the sums over all ranks."""
        params = scatter.equation.params
        out = params["scatter_dimension"]
        kind = scatter.equation.invars[0].aval.dtype
        rows = scatter.equation.invars[0].aval.shape[out] // params["axis_size"]
        ring = _ring(params, rows, out, self.form)
        parts: list[tuple[Step, tuple[Any, Any], int, Slices]] = []
        for step, operands in self.terms:
            found = operand_dimension(step, out)
            assert found is not None
            place, d = found
            there = dataclasses.replace(ring, dimension=d)
            parts.append((step, operands, place, taken_apart(there, operands[place])))

        def share(number: int, earlier: Any, came: Any) -> Any:
            total: Any = came
            for step, operands, place, pieces in parts:
                given = list(operands)
                given[place] = after(pieces[number], earlier)
                wide = {
                    **step.equation.params,
                    "preferred_element_type": _sums(kind),
                }
                made = self.run(step, given, wide)[0]
                total = plus(made, total)
            return total, ()

        return scatter_slices(ring, share, kind)


Waiting = Gathered | Arrived | Product


def _ring(params: Any, rows: int, dimension: int, form: Form) -> Ring:
    (axis,) = axes_of(params)
    return ring_of(axis, params["axis_size"], rows, dimension, form)


def _sums(kind: Any) -> Any:
    """float32 for shorter types: what ranks add up is not rounded in between."""
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


def can_be_a_ring(step: Step) -> bool:
    """True for a gather or scatter of blocks over one mesh axis, all its ranks."""
    params = step.equation.params
    if step.equation.primitive.name not in ("all_gather", "reduce_scatter"):
        return False
    return (
        bool(params["tiled"])
        and params["axis_index_groups"] is None
        and len(axes_of(params)) == 1
        and params["axis_size"] > 1
    )


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
