"""A training step with a schedule and clipping, made of a model's loss and gradient."""

from collections.abc import Callable
from typing import Any

import jax
import optax
from jax.sharding import Mesh, NamedSharding

import lagom_models
from lagom_models import TrainState
from lagom_models.model import Model
from training.progress import Metrics


def make_optimizer(
    learning_rate: float, warmup: int, steps: int
) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """Adamw behind clipping, with a warm-up and a cosine down to a tenth."""
    schedule = optax.warmup_cosine_decay_schedule(
        0.0 if warmup else learning_rate,
        learning_rate,
        warmup,
        max(steps, warmup + 1),
        end_value=learning_rate / 10,
    )
    adamw = optax.adamw(schedule, b1=0.9, b2=0.95, weight_decay=0.1)
    return optax.chain(optax.clip_by_global_norm(1.0), adamw), schedule


def make_step(
    model: Model, optimizer: optax.GradientTransformation
) -> Callable[[TrainState, jax.Array], tuple[TrainState, Metrics]]:
    """One step of training, to be jitted."""
    loss_and_gradient = lagom_models.sharded_gradient(model)

    def step(state: TrainState, tokens: jax.Array) -> tuple[TrainState, Metrics]:
        loss, gradient = loss_and_gradient(state.weights, tokens)
        change, moments = optimizer.update(gradient, state.optimizer, state.weights)
        weights = optax.apply_updates(state.weights, change)
        metrics = {"loss": loss, "gradient_norm": optax.global_norm(gradient)}
        return TrainState(weights, moments), metrics

    return step


def state_shapes(
    model: Model, optimizer: optax.GradientTransformation, mesh: Mesh
) -> TrainState:
    """Shapes of weights and moments, and how they are cut over the devices."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, leaf.sharding.spec)
        ),
        lagom_models.state_shapes(model, optimizer),
    )


def initial_state(
    model: Model, optimizer: optax.GradientTransformation, shapes: TrainState, seed: int
) -> TrainState:
    """Random weights and empty moments, each made where it belongs."""

    def make(seed: jax.Array) -> TrainState:
        weights = model.initial(seed)
        return TrainState(weights, optimizer.init(weights))

    return jax.jit(make, out_shardings=shardings(shapes))(seed)


def shardings(shapes: Any) -> Any:
    """Where each array of a tree of shapes belongs."""
    return jax.tree.map(lambda leaf: leaf.sharding, shapes)
