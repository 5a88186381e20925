"""The matrix products of a training step, as one device computes them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

from lagom_jax.compile._jax_internals import equations
from lagom_jax.hlo.matmul import Matmul
from lagom_models import build

# What the traced program calls a type, and what HLO does.
_TYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}


def products_of(
    model: str, parallelism: str, devices: int, *, tiny: bool = False
) -> Counter[Matmul]:
    """The products of a device's share, forward and backward, with how often they run.

    The step runs under `shard_map`, so the shapes in its trace are those of one
    device. A loop over the layers counts once: every layer has the same products.

    Args:
        model: One of the model suite.
        parallelism: How it is trained.
        devices: By how many.
        tiny: At a size for a CPU.

    Example:
        >>> products = products_of("phi-2", "fsdp", 8, tiny=True)
        >>> {p.k for p in products if p.m == 512 or p.n == 512} >= {128}
        True
    """
    step = build(
        model,
        devices=devices,
        parallelism=parallelism,
        tiny=tiny,
        sequence=64 if tiny else None,
    )
    trace = step.function.trace(*step.arguments)
    return Counter(
        product
        for equation in equations(trace.jaxpr)
        if equation.primitive.name == "dot_general"
        and (product := _product(equation)) is not None
    )


def heaviest(products: Counter[Matmul], count: int) -> list[Matmul]:
    """Those that take most of the arithmetic, the most first."""
    return sorted(products, key=lambda p: -p.flops * products[p])[:count]


def _product(equation: Any) -> Matmul | None:
    lhs, rhs = (variable.aval for variable in equation.invars)
    out = equation.outvars[0].aval
    types = [_TYPES.get(str(x.dtype)) for x in (lhs, rhs, out)]
    (summed, summed_rhs), (batched, batched_rhs) = equation.params["dimension_numbers"]
    return (
        None
        if None in types
        else Matmul(
            _size(lhs.shape, batched),
            _others(lhs.shape, {*summed, *batched}),
            _others(rhs.shape, {*summed_rhs, *batched_rhs}),
            _size(lhs.shape, summed),
            *(kind or "" for kind in types),
        )
    )


def _size(shape: tuple[int, ...], dimensions: Iterable[int]) -> int:
    return math.prod(shape[d] for d in dimensions)


def _others(shape: tuple[int, ...], dimensions: set[int]) -> int:
    return _size(shape, set(range(len(shape))) - dimensions)
