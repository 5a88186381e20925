"""One small step with everything a training step has, built on any mesh."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def training_step(mesh):
    """A scanned, rematerialised model with gradients, and its arguments' shapes."""

    def sharding(*spec):
        return NamedSharding(mesh, P(*spec))

    def loss(params, batch):
        def layer(carry, weights):
            carry = jnp.tanh(carry @ weights["up"])
            carry = jax.lax.with_sharding_constraint(carry, sharding("data", "model"))
            return carry @ weights["down"], None

        out, _ = jax.lax.scan(jax.checkpoint(layer), batch, params)
        return jnp.mean(out.astype(jnp.float32) ** 2)

    def step(params, count, batch, rate):
        value, grads = jax.value_and_grad(loss)(params, batch)
        new = jax.tree.map(lambda p, g: (p - rate * g).astype(p.dtype), params, grads)
        return new, count + 1, value

    specs = {"up": sharding(None, "data", "model"), "down": sharding(None, "model")}
    shapes = {"up": (3, 128, 256), "down": (3, 256, 128)}
    params = {
        name: jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=specs[name])
        for name, shape in shapes.items()
    }
    batch = jax.ShapeDtypeStruct((64, 128), jnp.bfloat16, sharding=sharding("data"))
    jitted = jax.jit(step, donate_argnums=(0, 1), out_shardings=(specs, None, None))
    return jitted, (params, jax.ShapeDtypeStruct((), jnp.int32), batch, 0.1)
