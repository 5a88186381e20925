"""Training steps of other people's libraries, as their users write them.

Each function is a factory as `lagom report` takes one. `WIDTH`, `LAYERS`, `TOKENS` are
small here; the environment variable `SIZE=real` makes them those of a large model.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

REAL = os.environ.get("SIZE") == "real"
WIDTH, LAYERS, TOKENS, WORDS = (4096, 16, 4096, 32000) if REAL else (64, 2, 32, 128)
HEADS = WIDTH // 128 if REAL else 4


def mesh_of(devices):
    return jax.make_mesh((devices,), ("data",), axis_types=(AxisType.Auto,))


def spread(tree, mesh):
    """Arrays without memory, each cut along its longest dimension that divides."""

    def place(leaf):
        spec = [None] * len(leaf.shape)
        order = sorted(range(len(spec)), key=lambda d: -leaf.shape[d])
        for dimension in order:
            if leaf.shape[dimension] % mesh.size == 0 and leaf.ndim > 1:
                spec[dimension] = "data"
                break
        sharding = NamedSharding(mesh, P(*spec))
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(place, tree)


def batch_of(devices, mesh):
    sharding = NamedSharding(mesh, P("data"))
    return jax.ShapeDtypeStruct((devices, TOKENS), jnp.int32, sharding=sharding)


def loss_of(logits, tokens):
    losses = optax.softmax_cross_entropy_with_integer_labels
    return losses(logits[:, :-1].astype(jnp.float32), tokens[:, 1:]).mean()


def flax_linen(devices):
    """Layers in a scan, logical names for their axes, a train state."""
    from flax import linen as nn
    from flax.training.train_state import TrainState

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            y = nn.LayerNorm(dtype=jnp.bfloat16)(x)
            attention = nn.MultiHeadDotProductAttention(HEADS, dtype=jnp.bfloat16)
            x = x + attention(y, mask=nn.make_causal_mask(y[..., 0]))
            y = nn.LayerNorm(dtype=jnp.bfloat16)(x)
            y = nn.gelu(nn.Dense(4 * WIDTH, dtype=jnp.bfloat16)(y))
            return x + nn.Dense(WIDTH, dtype=jnp.bfloat16)(y), None

    class Model(nn.Module):
        @nn.compact
        def __call__(self, tokens):
            x = nn.Embed(WORDS, WIDTH, dtype=jnp.bfloat16)(tokens)
            layers = nn.scan(
                nn.remat(Layer, prevent_cse=False),
                variable_axes={"params": 0},
                split_rngs={"params": True},
                length=LAYERS,
            )
            x, _ = layers()(x, None)
            return nn.Dense(WORDS, dtype=jnp.bfloat16)(x)

    mesh, model = mesh_of(devices), Model()

    def init():
        tokens = jnp.zeros((1, TOKENS), jnp.int32)
        params = model.init(jax.random.key(0), tokens)["params"]
        tx = optax.adamw(1e-3)
        return TrainState.create(apply_fn=model.apply, params=params, tx=tx)

    def step(state, tokens):
        def loss(params):
            return loss_of(state.apply_fn({"params": params}, tokens), tokens)

        value, gradient = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=gradient), value

    state = spread(jax.eval_shape(init), mesh)
    return jax.jit(step, donate_argnums=0), (state, batch_of(devices, mesh))


def flax_nnx(devices):
    """A model and an optimiser that a jitted function updates in place."""
    from flax import nnx

    class Layer(nnx.Module):
        def __init__(self, rngs):
            self.norm = nnx.RMSNorm(WIDTH, dtype=jnp.bfloat16, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(
                HEADS, WIDTH, decode=False, dtype=jnp.bfloat16, rngs=rngs
            )
            self.up = nnx.Linear(WIDTH, 4 * WIDTH, dtype=jnp.bfloat16, rngs=rngs)
            self.down = nnx.Linear(4 * WIDTH, WIDTH, dtype=jnp.bfloat16, rngs=rngs)

        def __call__(self, x):
            x = x + self.attention(self.norm(x))
            return x + self.down(nnx.gelu(self.up(x)))

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.table = nnx.Embed(WORDS, WIDTH, dtype=jnp.bfloat16, rngs=rngs)
            self.layers = nnx.List([Layer(rngs) for _ in range(min(LAYERS, 4))])
            self.head = nnx.Linear(WIDTH, WORDS, dtype=jnp.bfloat16, rngs=rngs)

        def __call__(self, tokens):
            x = self.table(tokens)
            for layer in self.layers:
                x = layer(x)
            return self.head(x)

    mesh = mesh_of(devices)

    def init():
        model = Model(nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)

    graph, state = nnx.split(nnx.eval_shape(init))
    model, optimizer = nnx.merge(graph, spread(state, mesh))

    @nnx.jit
    def step(model, optimizer, tokens):
        value, gradient = nnx.value_and_grad(lambda m: loss_of(m(tokens), tokens))(
            model
        )
        optimizer.update(model, gradient)
        return value

    return step, (model, optimizer, batch_of(devices, mesh))


def equinox(devices):
    """`eqx.filter_jit`, which has no `.trace`, and modules that hold functions."""
    import equinox as eqx

    class Layer(eqx.Module):
        norm: eqx.nn.LayerNorm
        attention: eqx.nn.MultiheadAttention
        mlp: eqx.nn.MLP

        def __init__(self, key):
            one, two = jax.random.split(key)
            self.norm = eqx.nn.LayerNorm(WIDTH)
            self.attention = eqx.nn.MultiheadAttention(HEADS, WIDTH, key=one)
            self.mlp = eqx.nn.MLP(WIDTH, WIDTH, 4 * WIDTH, 1, key=two)

        def __call__(self, x):
            y = jax.vmap(self.norm)(x)
            mask = jnp.tril(jnp.ones((len(x), len(x)), bool))
            x = x + self.attention(y, y, y, mask=mask)
            return x + jax.vmap(self.mlp)(x)

    class Model(eqx.Module):
        table: eqx.nn.Embedding
        layers: Layer
        head: eqx.nn.Linear

        def __init__(self, key):
            one, two, three = jax.random.split(key, 3)
            self.table = eqx.nn.Embedding(WORDS, WIDTH, key=one)
            self.layers = eqx.filter_vmap(Layer)(jax.random.split(two, LAYERS))
            self.head = eqx.nn.Linear(WIDTH, WORDS, use_bias=False, key=three)

        def __call__(self, tokens):
            arrays, functions = eqx.partition(self.layers, eqx.is_array)

            @jax.checkpoint
            def layer(x, arrays):
                return eqx.combine(arrays, functions)(x), None

            x, _ = jax.lax.scan(layer, jax.vmap(self.table)(tokens), arrays)
            return jax.vmap(self.head)(x)

    mesh, optimizer = mesh_of(devices), optax.adamw(1e-3)

    def init():
        model = Model(jax.random.key(0))
        model = jax.tree.map(
            lambda x: x.astype(jnp.bfloat16) if eqx.is_inexact_array(x) else x, model
        )
        return model, optimizer.init(eqx.filter(model, eqx.is_array))

    @eqx.filter_jit(donate="all-except-first")
    def step(tokens, model, state):
        def loss(model):
            return loss_of(jax.vmap(model)(tokens), tokens)

        value, gradient = eqx.filter_value_and_grad(loss)(model)
        updates, state = optimizer.update(gradient, state, model)
        return eqx.apply_updates(model, updates), state, value

    whole = eqx.filter_eval_shape(init)
    arrays, rest = eqx.partition(whole, lambda x: isinstance(x, jax.ShapeDtypeStruct))
    model, state = eqx.combine(spread(arrays, mesh), rest)
    return step, (batch_of(devices, mesh), model, state)


def keras(devices):
    """A compiled Keras model: the functional form of its training step."""
    import keras as library

    mesh = mesh_of(devices)
    width = 8 * WIDTH if REAL else WIDTH
    model = library.Sequential([library.Input((width,))])
    for _ in range(4):
        model.add(library.layers.Dense(width, activation="gelu"))
    optimizer = library.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)
    variables = (model.trainable_variables, optimizer.variables)
    trainable, moments = jax.tree.map(
        lambda v: jax.ShapeDtypeStruct(v.shape, v.dtype), variables
    )

    def step(trainable, moments, x, y):
        def loss(trainable):
            out, _ = model.stateless_call(trainable, [], x, training=True)
            return jnp.square(out - y).mean()

        value, gradient = jax.value_and_grad(loss)(trainable)
        trainable, moments = optimizer.stateless_apply(moments, gradient, trainable)
        return trainable, moments, value

    rows = jax.ShapeDtypeStruct(
        (512 * devices if REAL else 2 * devices, width),
        "float32",
        sharding=NamedSharding(mesh, P("data")),
    )
    arguments = (*spread((trainable, moments), mesh), rows, rows)
    return jax.jit(step, donate_argnums=(0, 1)), arguments


def halo_exchange(devices):
    """A wave on a grid that is cut into rows, with its neighbours' edges each step."""
    mesh = mesh_of(devices)
    size = 16384 if REAL else 64

    def advance(before, now):
        up = [(i, (i + 1) % devices) for i in range(devices)]
        down = [(b, a) for a, b in up]
        above = jax.lax.ppermute(now[-1:], "data", up)
        below = jax.lax.ppermute(now[:1], "data", down)
        padded = jnp.concatenate([above, now, below])
        curve = padded[2:] + padded[:-2] + jnp.roll(now, 1, 1) + jnp.roll(now, -1, 1)
        return now, 2 * now - before + 0.1 * (curve - 4 * now)

    def march(before, now):
        return jax.lax.fori_loop(0, 10, lambda _, s: advance(*s), (before, now))

    sharded = jax.shard_map(march, mesh=mesh, in_specs=P("data"), out_specs=P("data"))
    grid = jax.ShapeDtypeStruct(
        (size * devices // 8, size), "float32", sharding=NamedSharding(mesh, P("data"))
    )
    return jax.jit(sharded, donate_argnums=(0, 1)), (grid, grid)


STEPS = {
    "flax_linen": flax_linen,
    "flax_nnx": flax_nnx,
    "equinox": equinox,
    "keras": keras,
    "halo_exchange": halo_exchange,
}
