"""A step with several collectives under way at once, each with room to move."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

LAYERS, WIDTH, BATCH = 6, 2048, 8192
# Else one all-gather would take all the weights.
OPTIONS = {"xla_gpu_all_gather_combine_threshold_bytes": 0}
STARTS = ("all-gather-start", "async-start")


def overlapping_step(mesh):
    """A chain of matmuls by gathered weights, and its arguments' shapes."""
    whole = NamedSharding(mesh, P())
    weight = NamedSharding(mesh, P("data"))

    def step(weights, x):
        for each in weights:
            x = jnp.tanh(x @ jax.lax.with_sharding_constraint(each, whole))
        return x

    weights = [
        jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.bfloat16, sharding=weight)
        for _ in range(LAYERS)
    ]
    batch = jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.bfloat16, sharding=weight)
    return jax.jit(step), (weights, batch)
