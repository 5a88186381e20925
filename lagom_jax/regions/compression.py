"""Compression of outer gradients to 16, 8 or 4 bits for the way between regions.

A message is a tuple of arrays. Numbers of 16 bits are bfloat16; those of 8 and 4 bits
have a scale for each block of 64: whole numbers up to 127, and floats with two bits of
exponent and one of mantissa (0, 0.5, 1, 1.5, 2, 3, 4 and 6 of either sign).
"""

from __future__ import annotations

import itertools
from typing import Any, Final

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from lagom_jax.errors import RegionError
from lagom_jax.regions.volume import BITS, BLOCK

Message = tuple[Any, ...]
LEVELS: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes of a number of 4 bits."""
_BETWEEN: Final = tuple((a + b) / 2 for a, b in itertools.pairwise(LEVELS))
_TABLE: Final = np.array([*LEVELS, *(-x for x in LEVELS)], np.float32)


def check_bits(bits: int) -> int:
    """The number of bits, if there is such a form.

    Raises:
        RegionError: There is none.

    Example:
        >>> check_bits(4)
        4
    """
    if bits not in BITS:
        raise RegionError(f"bits={bits} must be one of {', '.join(map(str, BITS))}")
    return bits


def padded(size: int) -> int:
    """The length of a buffer for so many numbers, in whole blocks.

    Example:
        >>> padded(65)
        128
    """
    return -(-size // BLOCK) * BLOCK


def encode(values: jax.Array, bits: int) -> Message:
    """A message with these numbers.

    Args:
        values: Numbers in float32, a multiple of 64 of them.
        bits: 32, 16, 8 or 4 for each.

    Example:
        >>> message = encode(jnp.linspace(-1.0, 1.0, 64), 4)
        >>> [part.shape for part in message]
        [(32,), (1,)]
    """
    if bits == 32:
        return (values,)
    if bits == 16:
        return (values.astype(jnp.bfloat16),)
    blocks = values.reshape(-1, BLOCK)
    most = 127.0 if bits == 8 else LEVELS[-1]
    scales = (jnp.abs(blocks).max(axis=1) / most).astype(jnp.bfloat16)
    by = scales.astype(jnp.float32)[:, None]
    scaled = (blocks / jnp.where(by > 0, by, 1.0)).reshape(-1)
    if bits == 8:
        return jnp.clip(jnp.round(scaled), -127, 127).astype(jnp.int8), scales
    size = jnp.abs(scaled)
    level = sum((size > x).astype(jnp.uint8) for x in _BETWEEN)
    codes = (level + 8 * (scaled < 0).astype(jnp.uint8)).reshape(-1, 2)
    return codes[:, 0] + 16 * codes[:, 1], scales


def decode(message: Message, bits: int) -> Any:
    """The numbers of a message in float32, of jax's arrays or of numpy's alike.

    Example:
        >>> values = jnp.array([6.0, -3.0] * 32)
        >>> bool((decode(encode(values, 4), 4) == values).all())
        True
    """
    numpy = isinstance(message[0], np.ndarray)
    xp: Any = np if numpy else jnp
    if bits >= 16:
        return message[0].astype(xp.float32)
    codes, scales = message
    if bits == 4:
        pairs = xp.stack([codes & 15, codes >> 4], axis=-1)
        values = xp.asarray(_TABLE)[pairs.reshape(*codes.shape[:-1], -1)]
    else:
        values = codes.astype(xp.float32)
    blocks = values.reshape(*values.shape[:-1], -1, BLOCK)
    return (blocks * scales.astype(xp.float32)[..., None]).reshape(values.shape)


def shapes(size: int, bits: int) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Shapes and types of a message with so many numbers, a multiple of 64.

    Example:
        >>> [leaf.dtype.name for leaf in shapes(64, 8)]
        ['int8', 'bfloat16']
    """
    values = jax.ShapeDtypeStruct((size,), jnp.float32)
    return jax.eval_shape(lambda x: encode(x, bits), values)


def to_bytes(message: Message) -> bytes:
    """A message as bytes, one array after the other.

    Example:
        >>> len(to_bytes((np.zeros(4, np.int8), np.zeros(1, np.float32))))
        8
    """
    return b"".join(np.asarray(part).tobytes() for part in message)


def from_bytes(data: bytes, size: int, bits: int) -> Message:
    """The message of so many numbers that `to_bytes` wrote.

    Example:
        >>> from_bytes(bytes(12), 3, 32)
        (array([0., 0., 0.], dtype=float32),)
    """
    parts: list[np.ndarray] = []
    start = 0
    for dtype, count in _layout(size, bits):
        parts.append(np.frombuffer(data, dtype, count, start))
        start += count * np.dtype(dtype).itemsize
    if start != len(data):
        raise ValueError(f"a message of {len(data)} bytes, not of {start}")
    return tuple(parts)


def _layout(size: int, bits: int) -> tuple[tuple[Any, int], ...]:
    if bits == 32:
        return ((np.float32, size),)
    if bits == 16:
        return ((ml_dtypes.bfloat16, size),)
    codes = (np.int8, size) if bits == 8 else (np.uint8, size // 2)
    return (codes, (ml_dtypes.bfloat16, size // BLOCK))
