"""Regions laid out along an axis: stacked trees, and another number of regions.

In a stacked tree every leaf has a leading dimension that counts regions. Of an
optimiser's state only `own` is stacked; `common` is the same everywhere.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from lagom_jax.errors import RegionError
from lagom_jax.regions.outer_state import OuterOptimizer, OuterState


def state_axes() -> OuterState:
    """Axes of a state for `jax.vmap`.

    Example:
        >>> state_axes().own
        0
    """
    axes: Any = (None, 0)
    return OuterState(*axes)


def state_specs(axis: str) -> OuterState:
    """Cuts of a state for `shard_map`, each member having one region's part.

    Example:
        >>> state_specs("region").own
        P('region',)
    """
    specs: Any = (PartitionSpec(), PartitionSpec(axis))
    return OuterState(*specs)


def stacked(outer: OuterOptimizer, mesh: Mesh, axis: str = "region") -> OuterOptimizer:
    """The same optimiser for stacked trees, cut over a mesh axis.

    Args:
        outer: An optimiser for that axis, to be called under `shard_map`.
        mesh: Has the axis; a region's parameters are whole on each of its members.
        axis: The axis that regions lie along.

    Example:
        >>> from lagom_jax.regions import diloco
        >>> auto = (jax.sharding.AxisType.Auto,)
        >>> mesh = jax.make_mesh((1,), ("region",), axis_types=auto)
        >>> outer = stacked(diloco("region", period=1), mesh)
        >>> params = jnp.ones((1, 3))
        >>> params, state = outer.update(params, outer.init(params))
        >>> int(state.common.step), params.shape
        (1, (1, 3))
    """
    specs, cut = state_specs(axis), PartitionSpec(axis)

    def init(params: Any) -> OuterState:
        state = outer.init(_one(params))
        return state._replace(own=_many(state.own))

    def update(params: Any, state: OuterState) -> tuple[Any, OuterState]:
        params, state = outer.update(_one(params), state._replace(own=_one(state.own)))
        return _many(params), state._replace(own=_many(state.own))

    return outer._replace(
        init=jax.shard_map(init, mesh=mesh, in_specs=cut, out_specs=specs),
        update=jax.shard_map(
            update, mesh=mesh, in_specs=(cut, specs), out_specs=(cut, specs)
        ),
    )


def resized(
    outer: OuterOptimizer, params: Any, state: OuterState, regions: int
) -> tuple[Any, OuterState]:
    """Stacked parameters and their state for another number of regions.

    What all regions share stays, and so do means that are under way. Regions that
    come start from the global parameters, those that go are left out; what compression
    left unsent in a region that goes is lost.

    Args:
        outer: The optimiser that made the state.
        params: Stacked.
        state: Its `own` is stacked.
        regions: How many there are to be.

    Raises:
        RegionError: There would be none.

    Example:
        >>> from lagom_jax.regions import diloco
        >>> outer = diloco("region")
        >>> init = jax.vmap(outer.init, axis_name="region", out_axes=state_axes())
        >>> state = init(jnp.ones((2, 3)))
        >>> params, state = resized(outer, jnp.zeros((2, 3)), state, 3)
        >>> params.tolist()
        [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]
    """
    if regions < 1:
        raise RegionError("there must be at least one region")
    old = jax.tree.leaves(params)[0].shape[0]
    kept, new = min(old, regions), max(0, regions - old)
    newcomer, their = outer.join(state.common)

    def grown(leaf: Any, other: Any) -> Any:
        more = jnp.broadcast_to(other, (new, *leaf.shape[1:])).astype(leaf.dtype)
        return jnp.concatenate([leaf[:kept], more])

    params = jax.tree.map(grown, params, newcomer)
    return params, state._replace(own=jax.tree.map(grown, state.own, their.own))


def _one(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[0], tree)


def _many(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[None], tree)
