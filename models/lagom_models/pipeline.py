"""A pipeline of stages that hand micro batches on by collective-permute.

The schedule is GPipe's, written as one loop: in each tick every stage runs its layers
on what it was handed and hands the result on. `jax.grad` turns the loop around, so
the backward pass permutes the other way. Ticks in which a stage has no micro batch
compute on zeros; that is the bubble, and it takes the time that a bubble takes.

The embedding and the head are shared out evenly instead of keeping only the first
and the last stage busy: each stage embeds its share of the micro batches, and gets
its share of the last stage's results.
"""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

if TYPE_CHECKING:
    from lagom_models.model import Model, Parts


def ticks(micro_batches: int, stages: int) -> int:
    """The number of iterations of the loop.

    Example:
        >>> ticks(micro_batches=16, stages=8)
        23
    """
    return micro_batches + stages - 1


def run(model: "Model", parts: "Parts", weights: Any) -> tuple["Parts", jax.Array]:
    """Sends this device's share of the micro batches through all stages.

    Args:
        model: Gives the layers and the layout.
        parts: One array, `[micro batches x sequences, time, width]`.
        weights: The layers of this stage.

    Returns:
        The same share after the last layer, and this stage's balance loss.
    """
    layout, (x,) = model.layout, parts
    axis, stages = layout.pipeline_axis, layout.stages
    stage = lax.axis_index(axis)
    share = model.micro_batches // stages
    x = x.reshape(share, -1, *x.shape[1:])
    fed = lax.all_gather(x, axis, axis=0, tiled=True)
    idle = jnp.zeros((stages - 1, *fed.shape[1:]), fed.dtype)
    fed = jnp.concatenate([fed, idle + 0 * fed[:1]])
    # Brought together once, not in every tick; in float32, because that is what
    # gradients of many micro batches are added up in.
    weights = jax.tree.map(
        lambda weight: weight.astype(jnp.float32),
        model.fetch("layers", weights, stacked=True),
    )

    def tick(handed: jax.Array, turn: tuple[jax.Array, jax.Array]):
        index, fresh = turn
        x = jnp.where(stage == 0, fresh, handed)
        x, balance = _stage(model, x, weights)
        busy = (index >= stage) & (index < stage + model.micro_batches)
        handed = lax.ppermute(x, axis, [(i, i + 1) for i in range(stages - 1)])
        return handed, (x, jnp.where(busy, balance, 0))

    turns = jnp.arange(ticks(model.micro_batches, stages))
    _, (done, balances) = lax.scan(tick, 0 * fed[0], (turns, fed))
    done = jnp.where(stage == stages - 1, done[stages - 1 :], 0)
    done = lax.psum_scatter(done, axis, scatter_dimension=0, tiled=True)
    # The mean over devices is taken later; the stages' losses are to be added up.
    balance = balances.sum() * stages / model.micro_batches
    return (done.reshape(-1, *done.shape[2:]),), balance


def _stage(model: "Model", x: jax.Array, weights: Any) -> tuple[jax.Array, jax.Array]:
    layer = model.layer("layers", fetched=True)
    parts = tuple(jnp.split(x, model.layout.slices))
    if model.scan:
        parts, balances = lax.scan(layer, parts, weights)
        return jnp.concatenate(parts), balances.sum()
    balance = jnp.zeros(())
    for index in range(len(jax.tree.leaves(weights)[0])):
        state = jax.tree.map(lambda weight, index=index: weight[index], weights)
        parts, one = layer(parts, state)
        balance += one
    return jnp.concatenate(parts), balance
