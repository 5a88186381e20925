"""Small programs of one kernel, or of a few, of the kinds that training steps have."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import SingleDeviceSharding

from gpu_stages.model_products import heaviest, products_of
from lagom_jax.cluster import Gpu
from lagom_jax.hlo.elements import element_bytes
from lagom_jax.hlo.matmul import Matmul

_STEPS: Final = (
    ("llama-3-8b", "fsdp"),
    ("phi-2", "fsdp"),
    ("deepseek-moe-16b", "ep"),
    ("llama-3-8b", "tp"),
    ("olmoe-1b-7b", "ep"),
)
_OF_EACH_STEP: Final = 7
_OTHER_TYPES: Final = 4
_TYPES: Final = {
    "bf16": jnp.bfloat16,
    "f16": jnp.float16,
    "f32": jnp.float32,
    "f8e4m3fn": jnp.float8_e4m3fn,
}
# In pairs of one that is fitted to and one that is kept out, so that whatever is left
# out for lack of time leaves both: beyond the cache, inside, next to nothing.
_SIZES: Final = tuple(2**n for n in (28, 27, 24, 25, 18, 17, 26, 29, 22, 23, 20))
_DRY_SIZES: Final = tuple(2**n for n in (19, 16, 18, 17))
_HOST_SIZES: Final = tuple(2**n for n in (26, 27, 20, 21))
_WIDTH: Final = 4096
# Of a table that does not fit into the cache, with rows of 2 KiB.
_TABLE: Final = (1 << 16, 1024)
_DRY_TABLE: Final = (1 << 8, 64)
_EXPERTS, _CHOSEN = 64, 6
_LONG_ARITHMETIC: Final = 64


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """One program."""

    what: str
    function: Callable[..., Any]
    arguments: tuple[jax.ShapeDtypeStruct, ...]
    below: int = 0
    """Whole numbers among the arguments are below this."""
    else_function: Callable[..., Any] | None = None
    """What to take where this installation cannot compile `function`."""
    chained: bool = False
    """Each run takes what the run before gave, in the same place."""

    @property
    def nbytes(self) -> int:
        """Bytes of its arguments."""
        return sum(math.prod(a.shape) * a.dtype.itemsize for a in self.arguments)


def cases(gpu: Gpu, *, dry: bool) -> Iterator[Case]:
    """All of them, the most important first.

    Args:
        gpu: What they are for: its number types.
        dry: Few and small ones, for a CPU.
    """
    sizes = _DRY_SIZES if dry else _SIZES
    products = list(_products(gpu, dry))
    others = [
        *(case for size in sizes[:2] for case in _of_size(size, dry)),
        *_attention(dry),
        *(
            case
            for size in (_DRY_SIZES[:2] if dry else _HOST_SIZES)
            for case in _to_and_from_the_host(size)
        ),
        *(case for size in sizes[2:] for case in _of_size(size, dry)),
    ]
    # Two programs around each product, until there are no more products.
    both = itertools.zip_longest(products, others[::2], others[1::2])
    yield from (case for three in both for case in three if case is not None)


def product_case(product: Matmul) -> Case:
    """A product by its shape and types.

    Example:
        >>> product_case(Matmul(1, 64, 32, 16, "bf16", "bf16", "f32")).what
        '1 x 64 x 32 x 16 bf16 bf16 f32'
    """
    p = product
    lhs = jax.ShapeDtypeStruct((p.batch, p.m, p.k), _TYPES[p.lhs])
    rhs = jax.ShapeDtypeStruct((p.batch, p.k, p.n), _TYPES[p.rhs])
    out = _TYPES[p.out]

    def multiply(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.einsum("bmk,bkn->bmn", x, y, preferred_element_type=out)

    return Case(
        f"{p.batch} x {p.m} x {p.n} x {p.k} {p.lhs} {p.rhs} {p.out}",
        multiply,
        (lhs, rhs),
    )


def _products(gpu: Gpu, dry: bool) -> Iterator[Case]:
    """Of the model suite as it is, then some of them in other number types."""
    steps = _STEPS[:1] if dry else _STEPS
    lists = [
        heaviest(
            products_of(model, parallelism, 8, tiny=dry), 3 if dry else _OF_EACH_STEP
        )
        for model, parallelism in steps
    ]
    ranked = itertools.chain.from_iterable(itertools.zip_longest(*lists))
    found = list(dict.fromkeys(product for product in ranked if product is not None))
    yield from map(product_case, found)
    halves = [p for p in found if (p.lhs, p.rhs) == ("bf16", "bf16")][
        : 1 if dry else _OTHER_TYPES
    ]
    for p in halves:
        yield product_case(dataclasses.replace(p, lhs="f32", rhs="f32", out="f32"))
    # CPUs have no unit for these, and convert them.
    if "f8" in gpu.dense_flops_per_s and not dry:
        for p in halves:
            eight = {"lhs": "f8e4m3fn", "rhs": "f8e4m3fn", "out": "bf16"}
            yield product_case(dataclasses.replace(p, **eight))


def _of_size(size: int, dry: bool) -> Iterator[Case]:
    """Programs that move so many bytes, most of them exactly."""

    def of(
        what: str,
        function: Callable[..., Any],
        *parts: tuple[int, str],
        width: int = _WIDTH,
    ) -> Case:
        """Of arrays that take a part of all the bytes each."""
        arguments = tuple(
            jax.ShapeDtypeStruct(
                (max(1, int(size / (part * width * element_bytes(kind)))), width),
                _TYPES[kind],
            )
            for part, kind in parts
        )
        return Case(f"{what}, {_bytes(size)}", function, arguments)

    half, single = (2, "bf16"), (2, "f32")
    yield of("gated unit", lambda g, u: jax.nn.silu(g) * u, *[(3, "bf16")] * 2)
    yield of("root mean square norm", _norm, half)
    yield of("transpose", jnp.transpose, half)
    yield of("AdamW", _adam, *[(7, "f32")] * 4)
    yield of("joined", lambda x, y: jnp.concatenate([x, y]), *[(4, "bf16")] * 2)
    yield of("softmax", lambda x: jax.nn.softmax(x, axis=-1), half)
    yield _gather(size, dry)
    yield _scatter(size, dry)
    yield of("sum of columns", lambda x: x.sum(0, dtype=jnp.float32), (1, "bf16"))
    yield of(
        "heads in front",
        lambda x: x.reshape(len(x), 32, -1).swapaxes(0, 1),
        half,
    )
    yield of("cast", lambda x: x.astype(jnp.bfloat16), (2, "f32"))
    yield of("long arithmetic", _arithmetic, single)
    yield _fourier(size)
    yield of("sort", lambda x: jnp.sort(x.reshape(-1)), single)
    yield of(
        f"the {_CHOSEN} largest of {_EXPERTS}",
        lambda x: lax.top_k(x, _CHOSEN),
        (1, "f32"),
        width=_EXPERTS,
    )


def _norm(x: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    scale = lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-5)
    return (wide * scale).astype(x.dtype)


def _adam(
    weight: jax.Array, gradient: jax.Array, mean: jax.Array, square: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    mean = 0.9 * mean + 0.1 * gradient
    square = 0.95 * square + 0.05 * gradient * gradient
    change = mean / (jnp.sqrt(jnp.abs(square)) + 1e-8) + 0.1 * weight
    return weight - 3e-4 * change, mean, square


def _arithmetic(x: jax.Array) -> jax.Array:
    """A polynomial of a degree that no memory keeps up with."""
    y = x
    for n in range(_LONG_ARITHMETIC):
        y = y * x + 1 / (n + 1)
    return y


def _gather(size: int, dry: bool) -> Case:
    rows, width = _DRY_TABLE if dry else _TABLE
    count = size // 2 // (2 * width)
    return Case(
        f"rows of a table, {_bytes(size)}",
        lambda table, row: table[row],
        (
            jax.ShapeDtypeStruct((rows, width), jnp.bfloat16),
            jax.ShapeDtypeStruct((count,), jnp.int32),
        ),
        below=rows,
    )


def _scatter(size: int, dry: bool) -> Case:
    rows, width = _DRY_TABLE if dry else _TABLE
    count = size // 2 // (4 * width)
    return Case(
        f"added to rows of a table, {_bytes(size)}",
        lambda values, row: jnp.zeros((rows, width)).at[row].add(values),
        (
            jax.ShapeDtypeStruct((count, width), jnp.float32),
            jax.ShapeDtypeStruct((count,), jnp.int32),
        ),
        below=rows,
    )


def _fourier(size: int) -> Case:
    shape = (max(1, size // 2 // 8 // _WIDTH), _WIDTH)
    numbers = jax.ShapeDtypeStruct(shape, jnp.complex64)
    return Case(f"Fourier transform, {_bytes(size)}", jnp.fft.fft, (numbers,))


def _attention(dry: bool) -> Iterator[Case]:
    """Sequences, their length, heads, heads of keys, and the width of a head."""
    shapes = (
        [(1, 64, 4, 2, 32)]
        if dry
        else [
            (1, 2048, 32, 8, 128),
            (2, 2048, 32, 32, 80),
            (1, 8192, 32, 8, 128),
            (2, 4096, 16, 16, 128),
            (8, 1024, 16, 16, 64),
            (4, 2048, 4, 1, 128),
        ]
    )
    for batch, length, heads, key_heads, width in shapes:
        query = jax.ShapeDtypeStruct((batch, length, heads, width), jnp.bfloat16)
        key = jax.ShapeDtypeStruct((batch, length, key_heads, width), jnp.bfloat16)
        what = f"attention {batch} x {length} x {heads} ({key_heads}) x {width}"
        for more, wanted in (("", _attend), (", backward too", _attend_backward)):
            yield Case(
                what + more,
                functools.partial(wanted, implementation="cudnn"),
                (query, key, key),
                else_function=functools.partial(wanted, implementation="xla"),
            )


def _attend(
    q: jax.Array, k: jax.Array, v: jax.Array, *, implementation: Any
) -> jax.Array:
    return jax.nn.dot_product_attention(
        q, k, v, is_causal=True, implementation=implementation
    )


def _attend_backward(
    q: jax.Array, k: jax.Array, v: jax.Array, *, implementation: Any
) -> Any:
    def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        out = _attend(q, k, v, implementation=implementation)
        return jnp.square(out.astype(jnp.float32)).sum()

    return jax.grad(loss, argnums=(0, 1, 2))(q, k, v)


def _to_and_from_the_host(size: int) -> Iterator[Case]:
    gpu = jax.devices()[0]
    here, there = (
        SingleDeviceSharding(gpu, memory_kind=kind)
        for kind in ("device", "pinned_host")
    )
    for what, source, target in (
        ("to the host", here, there),
        ("from the host", there, here),
    ):
        array = jax.ShapeDtypeStruct((size // 4,), jnp.float32, sharding=source)
        copy = functools.partial(jax.device_put, device=target)
        yield Case(f"{what}, {_bytes(size)}", copy, (array,))


def chain(length: int) -> Case:
    """Tiny kernels, each of which needs the one before.

    Example:
        >>> float(chain(4).function(jnp.ones(1))[0])
        5.0
    """

    def add(x: jax.Array) -> jax.Array:
        for _ in range(length):
            x = lax.optimization_barrier(x + 1)
        return x

    shape = jax.ShapeDtypeStruct((256,), jnp.float32)
    return Case(f"{length} tiny kernels", add, (shape,), chained=True)


def arrays(case: Case) -> Sequence[jax.Array]:
    """Random arguments, where the case wants them."""
    bank = _bank()
    return [
        jax.device_put(
            _filled(bank, shape.shape, str(shape.dtype), case.below), shape.sharding
        )
        for shape in case.arguments
    ]


@functools.cache
def _bank() -> jax.Array:
    """Random numbers, enough of them that no kernel meets the same ones soon again."""
    # Zeros would take less power than numbers do, and let the clock run faster.
    return jnp.asarray(np.random.default_rng(0).standard_normal(1 << 22, np.float32))


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _filled(
    bank: jax.Array, shape: tuple[int, ...], dtype: str, below: int
) -> jax.Array:
    count = math.prod(shape)
    numbers = jnp.tile(bank, -(-count // bank.size))[:count].reshape(shape)
    if jnp.issubdtype(dtype, jnp.integer):
        return (jnp.abs(numbers) * (1 << 20)).astype(dtype) % below
    return numbers.astype(dtype)


def _bytes(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
