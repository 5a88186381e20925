"""Dimensions that an equation treats index by index, and equations of other sizes.

A rule gives groups of (place, dimension): places count operands from 0 and results from
-1 downwards. All dimensions of a group are cut alike: then the equation can run on one
slice after the other. An equation without a rule keeps nothing apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

Group = list[tuple[int, int]]

_ELEMENTWISE = frozenset(
    [
        "abs",
        "add",
        "add_any",
        "and",
        "atan2",
        "cbrt",
        "ceil",
        "clamp",
        "convert_element_type",
        "copy",
        "copy_p",
        "cos",
        "cosh",
        "copysign",
        "div",
        "eq",
        "erf",
        "erf_inv",
        "erfc",
        "exp",
        "exp2",
        "expm1",
        "floor",
        "ge",
        "gt",
        "imag",
        "integer_pow",
        "is_finite",
        "le",
        "lgamma",
        "log",
        "log1p",
        "logistic",
        "lt",
        "max",
        "min",
        "mul",
        "name",
        "ne",
        "neg",
        "nextafter",
        "not",
        "or",
        "pcast",
        "population_count",
        "pow",
        "pvary",
        "real",
        "reduce_precision",
        "rem",
        "round",
        "rsqrt",
        "select_n",
        "sharding_constraint",
        "shift_left",
        "shift_right_arithmetic",
        "shift_right_logical",
        "sign",
        "sin",
        "sinh",
        "sqrt",
        "square",
        "stop_gradient",
        "sub",
        "tan",
        "tanh",
        "xor",
        "optimization_barrier",
        "psum",
        "psum_invariant",
        "pmax",
        "pmin",
        "psum2",
        "reduced_vary_cast",
        "vary_unreduced_cast",
        "ppermute",
    ]
)
_REDUCTIONS = frozenset(
    [
        "argmax",
        "argmin",
        "reduce_and",
        "reduce_max",
        "reduce_min",
        "reduce_or",
        "reduce_prod",
        "reduce_sum",
        "reduce_xor",
    ]
)
_ALONG = {
    "cumsum": "axis",
    "cummax": "axis",
    "cummin": "axis",
    "cumprod": "axis",
    "cumlogsumexp": "axis",
    "sort": "dimension",
    "rev": "dimensions",
    "concatenate": "dimension",
}


def is_by_element(name: str) -> bool:
    """True for a primitive whose result needs of its operands the same element alone.

    Example:
        >>> is_by_element("tanh"), is_by_element("dot_general")
        (True, False)
    """
    return name in _ELEMENTWISE


def links(equation: Any) -> list[Group]:
    """The groups of dimensions that an equation keeps apart."""
    name = equation.primitive.name
    if name in _ELEMENTWISE:
        return list(_elementwise(equation))
    if name in _REDUCTIONS:
        return list(_reduction(equation))
    if name in _ALONG:
        at = equation.params[_ALONG[name]]
        return list(_elementwise(equation, {at} if isinstance(at, int) else set(at)))
    rule = _RULES.get(name)
    return [] if rule is None else list(rule(equation))


def _shapes(equation: Any) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    return (
        [tuple(getattr(v.aval, "shape", ())) for v in equation.invars],
        [tuple(getattr(v.aval, "shape", ())) for v in equation.outvars],
    )


def _elementwise(
    equation: Any, without: Sequence[int] | set[int] = ()
) -> Iterator[Group]:
    ins, outs = _shapes(equation)
    if equation.primitive.name in ("optimization_barrier", "psum", "psum_invariant"):
        for place, shape in enumerate(ins):
            for d in range(len(shape)):
                yield [(place, d), (-1 - place, d)]
        return
    for d in range(len(outs[0])):
        if d in without or outs[0][d] < 2:
            continue
        group: Group = [(-1 - place, d) for place, s in enumerate(outs) if len(s) > d]
        group += [
            (place, d)
            for place, shape in enumerate(ins)
            if len(shape) == len(outs[0]) and shape[d] == outs[0][d]
        ]
        yield group


def _reduction(equation: Any) -> Iterator[Group]:
    axes = {int(a) for a in equation.params["axes"]}
    (shape,), _ = _shapes(equation)
    kept = [d for d in range(len(shape)) if d not in axes]
    for out, d in enumerate(kept):
        yield [(0, d), (-1, out)]


def _broadcast(equation: Any) -> Iterator[Group]:
    dims = [int(d) for d in equation.params["broadcast_dimensions"]]
    ins, (out,) = _shapes(equation)
    for d, size in enumerate(out):
        if size < 2:
            continue
        if d not in dims:
            yield [(-1, d)]
        elif ins[0][dims.index(d)] == size:
            yield [(-1, d), (0, dims.index(d))]
        else:
            yield [(-1, d)]


def _reshape(equation: Any) -> Iterator[Group]:
    """Dimensions that begin at the same element; longer ones are cut in proportion."""
    if equation.params.get("dimensions") is not None:
        return
    (one, *_), (other,) = _shapes(equation)
    if 0 in one or 0 in other:
        return
    for d, size in enumerate(one):
        if size < 2:
            continue
        for e, length in enumerate(other):
            if length < 2 or math.prod(one[:d]) != math.prod(other[:e]):
                continue
            if size % length == 0 or length % size == 0:
                yield [(0, d), (-1, e)]


def _transpose(equation: Any) -> Iterator[Group]:
    for out, d in enumerate(equation.params["permutation"]):
        yield [(0, int(d)), (-1, out)]


def _squeeze(equation: Any) -> Iterator[Group]:
    gone = {int(d) for d in equation.params["dimensions"]}
    (shape,), _ = _shapes(equation)
    for out, d in enumerate(d for d in range(len(shape)) if d not in gone):
        yield [(0, d), (-1, out)]


def _dot(equation: Any) -> Iterator[Group]:
    (left, right), (one, two) = equation.params["dimension_numbers"]
    ins, _ = _shapes(equation)
    for out, (d, e) in enumerate(zip(one, two, strict=True)):
        yield [(0, int(d)), (1, int(e)), (-1, out)]
    out = len(one)
    for place, taken in ((0, (*left, *one)), (1, (*right, *two))):
        for d in range(len(ins[place])):
            if d not in taken:
                yield [(place, d), (-1, out)]
                out += 1


def _whole_only(cut: Callable[[Any, int], bool]) -> Callable[[Any], Iterator[Group]]:
    """A rule for equations that leave some dimensions of their operand as they are."""

    def rule(equation: Any) -> Iterator[Group]:
        ins, outs = _shapes(equation)
        for d in range(len(ins[0])):
            if not cut(equation, d):
                yield [(0, d), *((-1 - place, d) for place in range(len(outs)))]

    return rule


def _is_sliced(equation: Any, d: int) -> bool:
    p, size = equation.params, equation.invars[0].aval.shape[d]
    strides = p.get("strides")
    whole = p["start_indices"][d] == 0 and p["limit_indices"][d] == size
    return not whole or (strides is not None and strides[d] != 1)


def _is_padded(equation: Any, d: int) -> bool:
    return any(equation.params["padding_config"][d])


def _is_split(equation: Any, d: int) -> bool:
    return d == equation.params["axis"]


def _is_gathered(equation: Any, d: int) -> bool:
    p = equation.params
    return not p.get("tiled", False) or d == p["all_gather_dimension"]


def _is_scattered(equation: Any, d: int) -> bool:
    p = equation.params
    return not p.get("tiled", False) or d == p["scatter_dimension"]


def _is_swapped(equation: Any, d: int) -> bool:
    p = equation.params
    return not p.get("tiled", False) or d in (p["split_axis"], p["concat_axis"])


_RULES: dict[str, Callable[[Any], Iterator[Group]]] = {
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "transpose": _transpose,
    "squeeze": _squeeze,
    "dot_general": _dot,
    "slice": _whole_only(_is_sliced),
    "pad": _whole_only(_is_padded),
    "split": _whole_only(_is_split),
    "all_gather": _whole_only(_is_gathered),
    "reduce_scatter": _whole_only(_is_scattered),
    "all_to_all": _whole_only(_is_swapped),
}


def resized(
    equation: Any,
    ins: Sequence[tuple[int, ...]],
    dims: Sequence[int | None],
    share: tuple[int, int],
) -> dict[str, Any]:
    """Parameters of an equation for operands of other sizes.

    Args:
        equation: The equation.
        ins: The shapes of its operands now.
        dims: For every result, the dimension that is cut.
        share: The slice's size, and that of the whole, in the same unit.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> closed = jax.make_jaxpr(lambda x: jnp.reshape(x, (32,)))(jnp.ones((8, 4)))
        >>> resized(closed.jaxpr.eqns[-1], [(2, 4)], [0], (1, 4))["new_sizes"]
        (8,)
    """
    params = dict(equation.params)
    name, d = equation.primitive.name, dims[0]
    if d is None:
        return params
    part, whole = share
    shape = list(equation.outvars[0].aval.shape)
    shape[d] = shape[d] * part // whole
    if name == "broadcast_in_dim":
        params["shape"] = tuple(shape)
    elif name == "reshape":
        params["new_sizes"] = tuple(shape)
    elif name == "slice":
        limits = list(params["limit_indices"])
        limits[d] = ins[0][d]
        params["limit_indices"] = tuple(limits)
    return params
