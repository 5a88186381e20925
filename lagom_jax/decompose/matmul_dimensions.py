"""A matmul's dimensions, and the same matmul with an axis of ranks in front."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from lagom_jax.decompose.flat_program import FlatProgram, Step, run_step


def times_by_rank(
    step: Step, operands: Sequence[Any], place: int | None, params: Any = None
) -> Any:
    """A matmul's result; with a place, for each of the ranks in front of an operand."""

    def once(*given: Any) -> Any:
        return run_step(step, given, params)[0]

    if place is None:
        return once(*operands)
    axes = [0 if number == place else None for number in range(len(operands))]
    return jax.vmap(once, in_axes=axes)(*operands)


def summing_ranks(params: dict[str, Any]) -> dict[str, Any]:
    """Of a matmul whose operands have an axis of ranks in front, which is summed."""
    summed, batch = params["dimension_numbers"]
    behind = [tuple(d + 1 for d in one) for one in (*summed, *batch)]
    left, right = ((0, *one) for one in behind[:2])
    return {**params, "dimension_numbers": ((left, right), tuple(behind[2:]))}


def rows_of(step: Step, out: int) -> tuple[int, int]:
    """The operand and its dimension that one of a matmul's result is."""
    found = operand_dimension(step, out)
    assert found is not None
    return found


def adding_in(step: Step, kind: Any) -> dict[str, Any]:
    """A matmul's parameters, for a result of another type."""
    return {**step.equation.params, "preferred_element_type": kind}


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
        >>> import jax, jax.numpy as jnp
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
