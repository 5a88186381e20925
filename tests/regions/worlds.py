"""Regions in one process, along an axis of `jax.vmap`, and trees for them."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from lagom_jax.regions.fragments import Fragments
from lagom_jax.regions.placing import state_axes


def vmapped(outer):
    """`init` and `update` on stacked trees."""
    axes = state_axes()
    init = jax.vmap(outer.init, axis_name="region", out_axes=axes)
    update = jax.vmap(
        outer.update, axis_name="region", in_axes=(0, axes), out_axes=(0, axes)
    )
    return quickly_compiled(init), quickly_compiled(update)


def quickly_compiled(function):
    """`jax.jit` for a program that runs a few times on a few numbers."""
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})


def same_everywhere(params, regions):
    return jax.tree.map(lambda x: jnp.stack([jnp.asarray(x)] * regions), params)


def flat(params):
    """One row for each region."""
    return np.concatenate(
        [
            np.asarray(x, np.float32).reshape(len(x), -1)
            for x in jax.tree.leaves(params)
        ],
        axis=1,
    )


def flat_one(params):
    return flat(jax.tree.map(lambda x: jnp.asarray(x)[None], params))[0]


def masks(params, count):
    """For each fragment, where it is in a flat vector."""
    cut = Fragments.of(params, count)
    found = []
    for part in cut.parts:
        marks = [np.zeros(np.shape(x), bool) for x in jax.tree.leaves(params)]
        for piece in part:
            marks[piece.leaf] = np.asarray(
                piece.put(jnp.asarray(marks[piece.leaf]), jnp.ones(piece.shape, bool))
            )
        found.append(np.concatenate([mark.reshape(-1) for mark in marks]))
    return found


# With a denominator of 64 and small numerators, sums and differences are exact.
dyadic = st.integers(-64, 64).map(lambda n: n / 64)


@st.composite
def trees(draw, least=1, most=5):
    """Any pytree of a few small arrays."""
    shapes = draw(
        st.lists(
            st.lists(st.integers(1, 3), max_size=2).map(tuple),
            min_size=least,
            max_size=most,
        )
    )
    leaves = []
    for shape in shapes:
        size = int(np.prod(shape))
        values = draw(st.lists(dyadic, min_size=size, max_size=size))
        leaves.append(np.array(values, np.float32).reshape(shape))
    form = draw(st.sampled_from(["list", "dict", "nested"]))
    if form == "list":
        return tuple(leaves)
    named = {f"leaf{'abcdefgh'[i]}": leaf for i, leaf in enumerate(leaves)}
    return named if form == "dict" else {"one": named, "other": ()}
