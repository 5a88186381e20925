"""Slices that are taken from the shards of all devices, so that none has to move.

Which dimensions the partitioner cuts over devices is not known here. The indices of a
slice are spread over the whole dimension: then every device has as many of them,
whatever it has of the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax import lax


def slice_of_shards(x: Any, d: int, part: tuple[int, int], times: int = 1) -> Any:
    """Every so manieth group of indices.

    Args:
        x: The whole.
        d: The dimension.
        part: The number of the slice, and how many there are.
        times: Indices that stay together.

    Example:
        >>> import jax.numpy as jnp
        >>> slice_of_shards(jnp.arange(8), 0, (1, 2), times=2)
        Array([2, 3, 6, 7], dtype=int32)
    """
    number, count = part
    before, size, behind = x.shape[:d], x.shape[d], x.shape[d + 1 :]
    split = (*before, size // (count * times), count, times, *behind)
    one = lax.index_in_dim(x.reshape(split), number, axis=d + 1, keepdims=False)
    return one.reshape(*before, size // count, *behind)


def joined_shards(pieces: Sequence[Any], d: int, times: int = 1) -> Any:
    """All slices, as they were before `slice_of_shards`.

    Example:
        >>> import jax.numpy as jnp
        >>> joined_shards([jnp.array([0, 2]), jnp.array([1, 3])], 0)
        Array([0, 1, 2, 3], dtype=int32)
    """
    shape = pieces[0].shape
    split = (*shape[:d], shape[d] // times, 1, times, *shape[d + 1 :])
    whole = lax.concatenate([piece.reshape(split) for piece in pieces], d + 1)
    return whole.reshape(*shape[:d], len(pieces) * shape[d], *shape[d + 1 :])
