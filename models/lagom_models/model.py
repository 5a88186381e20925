"""The model as pure functions of a tree of weights: initial values and the loss."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.sharding import PartitionSpec

from lagom_models import pipeline
from lagom_models.blocks import Block, Outer
from lagom_models.configs import ModelConfig
from lagom_models.layers import Build
from lagom_models.layout import COMPUTE, Layout, Placement, mean_over_devices, remat

Tree = Any
Parts = tuple[jax.Array, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Model:
    """One config on one layout.

    The weights are a dict: `outer` (embedding, last norm, head), `dense` (a list of
    the dense layers that precede a mixture's) and `layers`, which is one tree with a
    leading dimension that counts layers where they are scanned or make a pipeline,
    and a list of trees where they are unrolled.

    Attributes:
        scan: Whether the layers are the body of one loop.
        remat: Whether the backward pass computes each layer's forward again.
        micro_batches: How many parts of the batch follow each other in a pipeline.
        accumulate: How many micro batches the gradients of a step are added up over.
        graphs: The structure of each group's module.
        placements: Where each group's weights live; a tree for one module.
    """

    config: ModelConfig
    layout: Layout
    scan: bool
    remat: bool
    micro_batches: int
    accumulate: int
    graphs: dict[str, nnx.GraphDef]
    placements: dict[str, Tree]

    @classmethod
    def create(
        cls,
        config: ModelConfig,
        layout: Layout,
        *,
        scan: bool = True,
        remat: bool = True,
        micro_batches: int = 1,
        accumulate: int = 1,
    ) -> "Model":
        """Traces one module of each kind, without making any weight."""
        graphs, placements = {}, {}
        for group in ("outer", "dense", "layers"):
            module = nnx.eval_shape(lambda group=group: _module(config, group, 0))
            graphs[group], state = nnx.split(module)
            repeated = group == "layers"
            stacked = repeated and (scan or layout.pipeline)
            placements[group] = _place(state, layout, staged=repeated, stacked=stacked)
        return cls(
            *(config, layout, scan, remat, micro_batches, accumulate),
            *(graphs, placements),
        )

    @property
    def stacked(self) -> bool:
        """True if the layers are one tree with a leading dimension."""
        return self.scan or self.layout.pipeline

    @property
    def repeated(self) -> int:
        """The number of layers of the repeated kind."""
        return self.config.layers - self.config.dense_layers

    def initial(self, seed: jax.Array) -> Tree:
        """Random weights, in float32."""
        keys = jax.random.split(jax.random.key(seed), self.config.layers + 1)
        outer, dense, layers = jnp.split(keys, [1, 1 + self.config.dense_layers])

        def make(group: str, key: jax.Array) -> Tree:
            return nnx.split(_module(self.config, group, key))[1]

        return {
            "outer": make("outer", outer[0]),
            "dense": [make("dense", key) for key in dense],
            "layers": jax.vmap(lambda key: make("layers", key))(layers)
            if self.stacked
            else [make("layers", key) for key in layers],
        }

    def specs(self) -> Tree:
        """The tree of weights, with PartitionSpecs in place of arrays."""
        outer, dense, layers = (
            jax.tree.map(lambda placement: placement.spec, self.placements[group])
            for group in ("outer", "dense", "layers")
        )
        return {
            "outer": outer,
            "dense": [dense] * self.config.dense_layers,
            "layers": layers if self.stacked else [layers] * self.repeated,
        }

    def batch_spec(self) -> PartitionSpec:
        """The PartitionSpec of the tokens `[batch, time]`."""
        return PartitionSpec(self.layout.batch_axes or None)

    def loss(self, weights: Tree, tokens: jax.Array) -> jax.Array:
        """The loss of this device's sequences, averaged over all devices."""
        inputs, targets = map(self.layout.own, (tokens[:, :-1], tokens[:, 1:]))
        outer = nnx.merge(self.graphs["outer"], self.fetch("outer", weights["outer"]))
        # Stages of a pipeline take their micro batches apart themselves.
        slices = 1 if self.layout.pipeline else self.layout.slices
        parts = tuple(jnp.split(outer.embed(inputs, self.layout), slices))
        balances = []
        for state in weights["dense"]:
            parts, _ = self.layer("dense")(parts, state)
        if self.layout.pipeline:
            parts, balance = pipeline.run(self, parts, weights["layers"])
            balances.append(balance)
        else:
            parts, balances = self.through(parts, weights["layers"])
        loss = outer.loss(jnp.concatenate(parts), targets, self.layout)
        if self.config.experts is None:
            return mean_over_devices(loss)
        balance = jnp.asarray(sum(jnp.sum(balance) for balance in balances))
        if self.layout.tensor:
            # The devices along the model axis agree on the loss, but each has its
            # own idea of the balance.
            return mean_over_devices(loss) + mean_over_devices(balance)
        return mean_over_devices(loss + balance)

    def through(self, parts: Parts, states: Tree) -> tuple[Parts, list[jax.Array]]:
        """All layers of the repeated kind, as a loop or one after the other."""
        layer, balances = self.layer("layers"), []
        if self.scan:
            parts, balance = lax.scan(layer, parts, states)
            return parts, [balance]
        for state in states:
            parts, balance = layer(parts, state)
            balances.append(balance)
        return parts, balances

    def fetch(self, group: str, state: Tree, *, stacked: bool = False) -> Tree:
        """Makes the weights of a module ready for use.

        Each is fetched under its own name, by which its collectives can be told
        apart in the compiled program.
        """

        def one(path: Any, weight: jax.Array, place: Placement) -> jax.Array:
            names = [step.key for step in path if hasattr(step, "key")]
            with jax.named_scope(".".join(names)):
                return self.layout.fetch(weight, place, stacked=stacked)

        return jax.tree_util.tree_map_with_path(one, state, self.placements[group])

    def layer(
        self, group: str, *, fetched: bool = False
    ) -> Callable[[Parts, Tree], tuple[Parts, jax.Array]]:
        """One layer, as a function of the parts of the batch and its weights.

        The parts do not depend on each other, so that the collectives of one can
        travel while another computes.
        """

        def body(parts: Parts, state: Tree) -> tuple[Parts, jax.Array]:
            if fetched:
                state = jax.tree.map(lambda weight: weight.astype(COMPUTE), state)
            else:
                state = self.fetch(group, state)
            block = nnx.merge(self.graphs[group], state)
            results = [block(x, self.layout) for x in parts]
            balance = sum(balance for _, balance in results) / len(results)
            return tuple(x for x, _ in results), jnp.asarray(balance)

        looped = self.scan and group == "layers"
        return remat(body, looped=looped, enabled=self.remat)


def _module(config: ModelConfig, group: str, key: jax.Array | int) -> nnx.Module:
    build = Build(config, nnx.Rngs(key))
    return Outer(build) if group == "outer" else Block(build, dense=group == "dense")


def _place(state: Tree, layout: Layout, *, staged: bool, stacked: bool) -> Tree:
    def place(variable: nnx.Param) -> Placement:
        cut = variable.get_metadata()
        return layout.place(
            variable.shape,
            tensor=cut.get("tensor"),
            expert=cut.get("expert"),
            inside=cut.get("inside", False),
            staged=staged,
            stacked=stacked,
        )

    variables, structure = jax.tree.flatten(
        state, is_leaf=lambda node: isinstance(node, nnx.Variable)
    )
    del structure
    return jax.tree.unflatten(
        jax.tree.structure(state), [place(variable) for variable in variables]
    )
