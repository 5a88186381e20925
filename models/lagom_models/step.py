"""Training steps: forward, backward and adamw, as one jitted function.

Weights and both moments of adamw are float32, arithmetic and everything that travels
is bfloat16: what mixed-precision training of language models commonly does.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from lagom_models.model import Model


class TrainState(NamedTuple):
    """The state that a step takes and returns: the weights and adamw's moments."""

    weights: Any
    optimizer: optax.OptState


@dataclasses.dataclass(frozen=True, slots=True)
class TrainingStep:
    """A training step and the shapes that it works on.

    Attributes:
        name: The model and the parallelism.
        model: Config, layout and the loss.
        batch: Sequences in a whole step, over all devices.
        sequence: Tokens that each sequence is trained on.
        learning_rate: Of adamw.
        mesh: Of the shardings, without devices. Arrays on a real mesh of the same
            shape can be given to `function` all the same.
        function: `function(state, tokens) -> (state, loss)`, jitted; the state is
            donated and comes back cut the same way.
        arguments: The shapes and shardings of `state` and `tokens`. No weight is
            ever allocated for them.
    """

    name: str
    model: Model
    batch: int
    sequence: int
    learning_rate: float
    mesh: AbstractMesh
    function: Any
    arguments: tuple[TrainState, jax.ShapeDtypeStruct]

    @classmethod
    def assemble(
        cls,
        name: str,
        model: Model,
        *,
        batch: int,
        sequence: int,
        learning_rate: float,
    ) -> "TrainingStep":
        """Puts loss, gradient and optimizer together."""
        mesh = model.layout.mesh
        optimizer = _adamw(learning_rate)
        loss_and_gradient = sharded_gradient(model)

        def train(state: TrainState, tokens: jax.Array) -> tuple[TrainState, jax.Array]:
            loss, gradient = loss_and_gradient(state.weights, tokens)
            change, moments = optimizer.update(gradient, state.optimizer, state.weights)
            return TrainState(optax.apply_updates(state.weights, change), moments), loss

        state = state_shapes(model, optimizer)
        arguments = (
            state,
            jax.ShapeDtypeStruct(
                (batch, sequence + 1),
                jnp.int32,
                sharding=NamedSharding(mesh, model.batch_spec()),
            ),
        )
        shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
        out = (shardings, NamedSharding(mesh, PartitionSpec()))
        function = jax.jit(train, donate_argnums=0, out_shardings=out)
        return cls(
            name, model, batch, sequence, learning_rate, mesh, function, arguments
        )

    @property
    def parameters(self) -> int:
        """The number of the model's weights."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.arguments[0].weights))

    def initialise(self, mesh: Mesh, seed: int = 0) -> tuple[TrainState, jax.Array]:
        """Random weights, zero moments and random tokens on real devices.

        Args:
            mesh: Devices in the shape and with the axis names of `self.mesh`.
            seed: Decides weights and tokens.

        Returns:
            Arguments for `function`, each array made where it belongs.
        """

        def make(seed: jax.Array) -> tuple[TrainState, jax.Array]:
            weights = self.model.initial(seed)
            state = TrainState(weights, _adamw(self.learning_rate).init(weights))
            tokens = jax.random.randint(
                jax.random.key(seed + 1),
                self.arguments[1].shape,
                0,
                self.model.config.vocabulary,
            )
            return state, tokens

        shardings = jax.tree.map(
            lambda leaf: NamedSharding(mesh, leaf.sharding.spec), self.arguments
        )
        return jax.jit(make, out_shardings=shardings)(seed)

    def describe(self) -> str:
        """Name and summary in one line."""
        return f"{self.name}: {self.summary}"

    @property
    def summary(self) -> str:
        """Weights, layers, mesh and batch in one line."""
        model = self.model
        mesh = " x ".join(f"{axis}={n}" for axis, n in self.mesh.shape.items())
        return (
            f"{self.parameters / 1e9:.3g} billion weights, "
            f"{'cut' if model.layout.shard_data else 'whole'} along the data axis; "
            f"{model.config.layers} layers, "
            f"{'scanned' if model.scan else 'unrolled'}, "
            f"{'recomputed' if model.remat else 'kept'} for the backward pass; "
            f"mesh {mesh}; {self.batch} sequences of {self.sequence} tokens"
        )


def sharded_loss(model: Model) -> Callable[[Any, jax.Array], jax.Array]:
    """The loss as a function of whole weights and tokens, computed in shards."""
    return jax.shard_map(
        model.loss,
        mesh=model.layout.mesh,
        in_specs=(model.specs(), model.batch_spec()),
        out_specs=PartitionSpec(),
    )


def sharded_gradient(model: Model) -> Callable[[Any, jax.Array], tuple[jax.Array, Any]]:
    """Loss and gradient as functions of whole weights and tokens, likewise."""
    specs = model.specs()
    return jax.shard_map(
        _accumulated(model) if model.accumulate > 1 else jax.value_and_grad(model.loss),
        mesh=model.layout.mesh,
        in_specs=(specs, model.batch_spec()),
        out_specs=(PartitionSpec(), specs),
    )


def _accumulated(model: Model) -> Callable[[Any, jax.Array], tuple[jax.Array, Any]]:
    """Loss and gradient of a shard's sequences, one micro batch after the other."""

    def gradient(weights: Any, tokens: jax.Array) -> tuple[jax.Array, Any]:
        parts = tokens.reshape(model.accumulate, -1, tokens.shape[-1])

        def add(total: Any, part: jax.Array) -> tuple[Any, None]:
            found = jax.value_and_grad(model.loss)(weights, part)
            return jax.tree.map(jnp.add, total, found), None

        nothing = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, weights))
        total, _ = jax.lax.scan(add, nothing, parts)
        return jax.tree.map(lambda value: value / model.accumulate, total)

    return gradient


def state_shapes(model: Model, optimizer: optax.GradientTransformation) -> TrainState:
    """Shapes and shardings of a training state, whatever the optimizer.

    Moments are cut as their weights are; what belongs to no weight is everywhere.
    """
    mesh, specs = model.layout.mesh, model.specs()
    weights = jax.eval_shape(model.initial, 0)
    state = TrainState(weights, jax.eval_shape(optimizer.init, weights))
    moments = optax.tree.map_params(
        optimizer,
        lambda _, spec: spec,
        state.optimizer,
        specs,
        transform_non_params=lambda _: PartitionSpec(),
    )
    return jax.tree.map(
        lambda leaf, spec: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec)
        ),
        state,
        TrainState(specs, moments),
    )


def _adamw(learning_rate: float) -> optax.GradientTransformation:
    return optax.adamw(learning_rate, b1=0.9, b2=0.95, weight_decay=0.1)
