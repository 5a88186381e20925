"""Mixture of experts: top-k routing into slots, and the way there and back.

Shapes are static, so every expert offers a fixed number of slots to each group of
tokens (GShard, Switch Transformer) and tokens beyond that are dropped. Slots are
filled in the order of the choices: all first choices before any second.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from lagom_models.layers import Build, FeedForward
from lagom_models.layout import Layout


class Mixture(nnx.Module):
    """Routed experts, and those that every token visits."""

    def __init__(self, build: Build):
        c, experts = build.config, build.config.experts
        assert experts is not None
        self.experts = experts
        shape = (experts.count, c.width, experts.hidden)
        self.router = build.matrix(c.width, experts.count, inside=True)
        self.gate = build.matrix(*shape, tensor=2, expert=0)
        self.up = build.matrix(*shape, tensor=2, expert=0)
        self.down = build.matrix(
            experts.count,
            experts.hidden,
            c.width,
            tensor=1,
            expert=0,
            scale=(2 * c.layers) ** -0.5,
        )
        self.shared = (
            FeedForward(build, experts.shared * experts.hidden)
            if experts.shared
            else None
        )

    def __call__(self, x: jax.Array, layout: Layout) -> tuple[jax.Array, jax.Array]:
        """Returns this device's part of the output, and the balance loss."""
        tokens = x.reshape(-1, x.shape[-1])
        weights, slots, balance = self._route(tokens)
        rows = self.experts.count * self.experts.capacity(len(tokens))
        # Only whole rows move, each to a slot of its own, so that neither direction
        # of the gradient needs an addition with conflicts.
        filled = jnp.zeros((rows, x.shape[-1]), x.dtype)
        filled = filled.at[slots].set(
            jnp.tile(tokens, (self.experts.top_k, 1)), mode="drop", unique_indices=True
        )
        answers = self._visit(filled, layout).at[slots]
        answers = answers.get(mode="fill", fill_value=0, unique_indices=True)
        mixed = (answers * weights[:, None]).reshape(-1, *x.shape).sum(0)
        if self.shared is not None:
            mixed = mixed + self.shared(x, layout)
        return mixed, balance

    def _route(self, tokens: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Weights and slots of all choices, first choices first, and the balance."""
        experts, capacity = self.experts, self.experts.capacity(len(tokens))
        logits = jnp.matmul(
            tokens, self.router[...], preferred_element_type=jnp.float32
        )
        chances = jax.nn.softmax(logits)
        weights, chosen = jax.lax.top_k(chances, experts.top_k)
        weights, chosen = weights.T.reshape(-1), chosen.T.reshape(-1)
        visits = jax.nn.one_hot(chosen, experts.count, dtype=jnp.int32)
        turn = (jnp.cumsum(visits, axis=0) * visits).sum(1) - 1
        beyond = experts.count * capacity + jnp.arange(len(chosen))
        slots = jnp.where(turn < capacity, chosen * capacity + turn, beyond)
        share = visits.sum(0) * experts.count / len(chosen)
        balance = experts.balance_weight * (share * chances.mean(0)).sum()
        return weights.astype(tokens.dtype), slots, balance

    def _visit(self, rows: jax.Array, layout: Layout) -> jax.Array:
        """Runs the experts on their slots, wherever they live."""
        width, devices = rows.shape[-1], layout.size((layout.expert_axis,))
        local = self.experts.count // devices
        sent = rows.reshape(devices, local, -1, width)
        here = layout.exchange(sent).swapaxes(0, 1).reshape(local, -1, width)
        gate = jnp.einsum("ecd,edf->ecf", here, self.gate[...])
        hidden = jax.nn.silu(gate) * jnp.einsum("ecd,edf->ecf", here, self.up[...])
        out = jnp.einsum("ecf,efd->ecd", hidden, self.down[...])
        back = out.reshape(local, devices, -1, width).swapaxes(0, 1)
        return layout.exchange(back).reshape(-1, width)
