"""A decoder layer, and what stands before and after the layers."""

import jax
import jax.numpy as jnp
from flax import nnx

from lagom_models.layers import Attention, Build, FeedForward, Norm
from lagom_models.layout import Layout
from lagom_models.mixture import Mixture


class Block(nnx.Module):
    """Attention and feed-forward, one after the other or side by side."""

    def __init__(self, build: Build, *, dense: bool):
        c = build.config
        self.config = c
        self.norm = Norm(build, c.width)
        self.attention = Attention(build)
        self.attention_bias = build.vector(c.width, 0.0) if c.bias else None
        self.forward_norm = None if c.parallel_block else Norm(build, c.width)
        self.forward = (
            FeedForward(build, c.hidden)
            if dense or c.experts is None
            else Mixture(build)
        )
        self.forward_bias = build.vector(c.width, 0.0) if c.bias else None

    def __call__(self, x: jax.Array, layout: Layout) -> tuple[jax.Array, jax.Array]:
        """Returns the layer's output and its balance loss."""
        read = layout.enter(self.norm(x), fused=True)
        attended = self.attention(read, layout)
        if self.forward_norm is not None:
            x = x + self._leave(attended, self.attention_bias, layout)
            read = layout.enter(self.forward_norm(x), fused=True)
            fed, balance = self._feed(read, layout)
            return x + self._leave(fed, self.forward_bias, layout), balance
        # Both halves are added up before they travel: one collective, not two.
        fed, balance = self._feed(read, layout)
        both = self._leave(attended + fed, self.attention_bias, layout)
        return x + _shift(both, self.forward_bias), balance

    def _feed(self, x: jax.Array, layout: Layout) -> tuple[jax.Array, jax.Array]:
        if isinstance(self.forward, Mixture):
            return self.forward(x, layout)
        return self.forward(x, layout), jnp.zeros(())

    def _leave(self, x: jax.Array, bias: nnx.Param | None, layout: Layout) -> jax.Array:
        return _shift(layout.leave(x, fused=True), bias)


class Outer(nnx.Module):
    """The embedding, the last norm and the head."""

    def __init__(self, build: Build):
        c = build.config
        self.config = c
        # The matrix helper scales by the last but one dimension; what counts here is
        # the width, for looking up as for the head.
        scale = (c.vocabulary / c.width) ** 0.5

        def words() -> nnx.Param:
            return build.matrix(c.vocabulary, c.width, tensor=0, scale=scale)

        self.table = words()
        self.norm = Norm(build, c.width)
        self.head = None if c.tied else words()
        self.head_bias = build.vector(c.vocabulary, 0.0, tensor=0) if c.bias else None

    def embed(self, tokens: jax.Array, layout: Layout) -> jax.Array:
        """Looks tokens up; each device knows its part of the vocabulary."""
        table = self.table[...]
        row = tokens - _first_word(len(table), layout)
        known = (row >= 0) & (row < len(table))
        found = jnp.where(known[..., None], table[jnp.where(known, row, 0)], 0)
        return layout.leave(found)

    def loss(self, x: jax.Array, targets: jax.Array, layout: Layout) -> jax.Array:
        """The mean cross entropy of the next words."""
        head = self.table[...] if self.head is None else self.head[...]
        x = layout.enter(self.norm(x))
        logits = jnp.einsum("bsd,vd->bsv", x, head, preferred_element_type=jnp.float32)
        if self.head_bias is not None:
            logits = logits + self.head_bias[...]
        word = targets - _first_word(len(head), layout)
        known = (word >= 0) & (word < len(head))
        picked = jnp.take_along_axis(
            logits, jnp.where(known, word, 0)[..., None], axis=-1
        )[..., 0]
        peak = jax.lax.stop_gradient(logits.max(-1))
        if layout.tensor:
            peak = jax.lax.pmax(peak, "model")
        mass = jnp.exp(logits - peak[..., None]).sum(-1)
        mass, picked = layout.total(jnp.stack([mass, jnp.where(known, picked, 0)]))
        return (jnp.log(mass) + peak - picked).mean()


def _shift(x: jax.Array, bias: nnx.Param | None) -> jax.Array:
    return x if bias is None else x + bias[...]


def _first_word(words: int, layout: Layout) -> jax.Array | int:
    return jax.lax.axis_index("model") * words if layout.tensor else 0
