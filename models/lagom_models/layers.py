"""The parts of a decoder layer, as Flax NNX modules.

NNX and not Linen: a module is merged from whatever arrays are at hand, so the same
code runs on whole weights and on the shard that a device holds. Linen compares each
array with the shape its initialiser would make and refuses shards. Merging one layer
inside a scanned body also keeps tracing to one layer, however deep the model is.

Modules take their widths from the weights they are given, never from the config:
under tensor parallelism a device has a part of the heads and of the hidden units.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from lagom_jax import decompose
from lagom_models.configs import ModelConfig
from lagom_models.layout import Layout


@dataclasses.dataclass(frozen=True, slots=True)
class Build:
    """Config and random numbers from which modules make their weights."""

    config: ModelConfig
    rngs: nnx.Rngs

    def matrix(
        self,
        *shape: int,
        tensor: int | None = None,
        expert: int | None = None,
        inside: bool = False,
        scale: float = 1.0,
    ) -> nnx.Param:
        """A weight matrix, normally distributed by its fan-in.

        Args:
            *shape: The shape; the last but one dimension is the fan-in.
            tensor: The dimension that tensor parallelism cuts.
            expert: The dimension that counts experts.
            inside: Whether every device uses all of it on its part of the work.
            scale: Multiplies the standard deviation.
        """
        deviation = scale * shape[-2] ** -0.5
        value = jax.random.normal(self.rngs.params(), shape, jnp.float32) * deviation
        return nnx.Param(value, tensor=tensor, expert=expert, inside=inside)

    def vector(
        self, length: int, fill: float, *, tensor: int | None = None
    ) -> nnx.Param:
        """A bias or a norm's scale."""
        value = jnp.full((length,), fill, jnp.float32)
        return nnx.Param(value, tensor=tensor)


class Norm(nnx.Module):
    """RMS norm or layer norm, computed in float32."""

    def __init__(self, build: Build, width: int):
        self.config = build.config
        self.scale = build.vector(width, 1.0)
        self.shift = build.vector(width, 0.0) if build.config.norm_bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalises the last dimension."""
        y, epsilon = x.astype(jnp.float32), self.config.epsilon
        if self.config.norm == "layer":
            y = y - y.mean(-1, keepdims=True)
        y = y * jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + epsilon)
        y = y.astype(x.dtype) * self.scale[...]
        return y if self.shift is None else y + self.shift[...]


class HeadNorms(nnx.Module):
    """RMS norms of queries and keys that span all heads."""

    def __init__(self, build: Build, width: int, kv_width: int):
        self.epsilon = build.config.epsilon
        self.query_scale = build.vector(width, 1.0, tensor=0)
        self.key_scale = build.vector(kv_width, 1.0, tensor=0)

    def __call__(
        self, query: jax.Array, key: jax.Array, layout: Layout
    ) -> tuple[jax.Array, jax.Array]:
        """Normalises both; a device may have a part of the heads of each."""
        wide = [t.astype(jnp.float32) for t in (query, key)]
        # Both sums of squares travel together.
        sums = layout.total(jnp.stack([jnp.square(t).sum(-1) for t in wide]))
        parts = layout.model if layout.tensor else 1
        widths = jnp.array([t.shape[-1] * parts for t in wide], jnp.float32)
        roots = jax.lax.rsqrt(sums / widths[:, None, None] + self.epsilon)[..., None]
        roots = layout.spread(roots)
        return (
            (wide[0] * roots[0]).astype(query.dtype) * self.query_scale[...],
            (wide[1] * roots[1]).astype(key.dtype) * self.key_scale[...],
        )


class Attention(nnx.Module):
    """Causal self-attention with rotary or ALiBi positions."""

    def __init__(self, build: Build):
        c = build.config
        self.config = c
        width, kv_width = c.heads * c.head_width, c.kv_heads * c.head_width
        self.query = build.matrix(c.width, width, tensor=1)
        self.key = build.matrix(c.width, kv_width, tensor=1)
        self.value = build.matrix(c.width, kv_width, tensor=1)
        self.out = build.matrix(width, c.width, tensor=0, scale=(2 * c.layers) ** -0.5)
        self.query_bias = build.vector(width, 0.0, tensor=0) if c.bias else None
        self.key_bias = build.vector(kv_width, 0.0, tensor=0) if c.bias else None
        self.value_bias = build.vector(kv_width, 0.0, tensor=0) if c.bias else None
        self.norms = HeadNorms(build, width, kv_width) if c.qk_norm else None

    def __call__(self, x: jax.Array, layout: Layout) -> jax.Array:
        """Returns this device's part of the output, not yet added up."""
        query, key, value = layout.columns(
            x, self.query[...], self.key[...], self.value[...]
        )
        query = _add(query, self.query_bias)
        key = _add(key, self.key_bias)
        value = _add(value, self.value_bias)
        shape = query.shape
        if self.norms is not None:
            query, key = self.norms(query, key, layout)
        query, key, value = (self._heads(t) for t in (query, key, value))
        rotary, base = self.config.rotary, self.config.rotary_base
        here = layout.positions(shape[1])
        if rotary is not None:
            query, key = (rotate(t, rotary, base, here) for t in (query, key))
        key, value = layout.whole(key), layout.whole(value)
        bias = mask = None
        if rotary is None:
            bias = alibi(self.config.heads, query.shape[2], here, key.shape[1], layout)
        if layout.context:
            mask = (here[:, None] >= jnp.arange(key.shape[1]))[None, None]
        mixed = jax.nn.dot_product_attention(
            query,
            key,
            value,
            bias,
            mask,
            is_causal=mask is None,
            implementation=None if self.config.attention == "plain" else "cudnn",
        )
        return layout.rows(mixed.reshape(shape), self.out[...])

    def _heads(self, x: jax.Array) -> jax.Array:
        return x.reshape(*x.shape[:2], -1, self.config.head_width)


class FeedForward(nnx.Module):
    """silu(gate) * up, or gelu(up), and down."""

    def __init__(self, build: Build, hidden: int):
        c = build.config
        self.gate = build.matrix(c.width, hidden, tensor=1) if c.gated else None
        self.up = build.matrix(c.width, hidden, tensor=1)
        self.up_bias = build.vector(hidden, 0.0, tensor=0) if c.bias else None
        self.down = build.matrix(
            hidden, c.width, tensor=0, scale=(2 * c.layers) ** -0.5
        )

    def __call__(self, x: jax.Array, layout: Layout) -> jax.Array:
        """Returns this device's part of the output, which `leave` adds up."""
        wide = [self.up] if self.gate is None else [self.up, self.gate]
        bias = None if self.up_bias is None else self.up_bias[...]

        def hidden(up: jax.Array, gate: jax.Array | None = None) -> jax.Array:
            up = up if bias is None else up + bias
            return jax.nn.gelu(up) if gate is None else jax.nn.silu(gate) * up

        matrices = [matrix[...] for matrix in wide]
        if layout.sequence and layout.fused is not None:
            # Slices go straight on, and are never put together.
            ring, slices = decompose.gather_matmul_slices(
                x, matrices, "model", dimension=1, form=layout.fused
            )
            made = tuple(hidden(*several) for several in slices)
            return decompose.scatter_matmul_slices(ring, made, self.down[...])
        return layout.rows(hidden(*layout.columns(x, *matrices)), self.down[...])


def _add(x: jax.Array, bias: nnx.Param | None) -> jax.Array:
    return x if bias is None else x + bias[...]


def rotate(x: jax.Array, fraction: float, base: float, where: jax.Array) -> jax.Array:
    """Rotary positions on the first part of each head of `[batch, time, head, width]`.

    Example:
        >>> x = jnp.ones((1, 2, 1, 128))
        >>> turned = rotate(x, 0.4, 10_000.0, jnp.arange(2))
        >>> bool((turned[0, 0] == x[0, 0]).all())
        True
    """
    half = int(x.shape[-1] * fraction) // 2
    rates = base ** -(jnp.arange(half, dtype=jnp.float32) / half)
    angles = where.astype(jnp.float32)[:, None, None] * rates
    sine, cosine = jnp.sin(angles).astype(x.dtype), jnp.cos(angles).astype(x.dtype)
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    turned = (first * cosine - second * sine, second * cosine + first * sine)
    return jnp.concatenate([*turned, rest], axis=-1)


def alibi(
    heads: int, local_heads: int, where: jax.Array, time: int, layout: Layout
) -> jax.Array:
    """Attention biases that fall linearly with distance: `[1, head, query, key]`.

    Args:
        heads: The heads of the whole model, which set the slopes.
        local_heads: The heads that this device has.
        where: The places of the queries.
        time: The length of the sequence.
        layout: Says which of the heads these are.

    Example:
        >>> layout = Layout("dp", data=1, model=1, shard_data=False)
        >>> alibi(8, 8, jnp.arange(4), 4, layout).shape
        (1, 8, 4, 4)
    """
    first = jax.lax.axis_index("model") * local_heads if layout.tensor else 0
    slopes = 2.0 ** (-8.0 * (first + jnp.arange(local_heads) + 1) / heads)
    distance = where[:, None] - jnp.arange(time)[None, :]
    return (-slopes[:, None, None] * distance)[None].astype(jnp.bfloat16)
