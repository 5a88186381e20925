"""Trees laid out over meshes: regions along an axis, and the mesh of one region.

In a stacked tree every leaf has a leading dimension that counts regions. Of an
optimiser's state only `own` is stacked; `common` is the same everywhere.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lagom_jax.errors import RegionError
from lagom_jax.regions.outer_state import Common, OuterOptimizer, OuterState


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


def sharded(outer: OuterOptimizer, mesh: Mesh, specs: Any) -> OuterOptimizer:
    """The same optimiser for parameters that the mesh of one region cuts.

    Each device gives what it holds to the same device of the other regions, whose
    meshes are laid out alike; a region may be as many processes as it needs.

    Args:
        outer: An optimiser through an `Exchange`, whose `within` names the axes that
            cut the parameters.
        mesh: The region's.
        specs: Of the parameters, as `shard_map` takes them.

    Example:
        >>> from lagom_jax.regions import diloco
        >>> auto = (jax.sharding.AxisType.Auto,)
        >>> mesh = jax.make_mesh((1,), ("fsdp",), axis_types=auto)
        >>> whole = diloco(None, period=1, within=("fsdp",))
        >>> outer = sharded(whole, mesh, PartitionSpec("fsdp"))
        >>> params = jnp.ones(4)
        >>> params, state = outer.update(params, outer.init(params))
        >>> int(state.common.step), params.tolist()
        (1, [1.0, 1.0, 1.0, 1.0])
    """

    def mapped(f: Any, given: Any, found: Any) -> Any:
        # What arrives through a callback is not known to be the same everywhere.
        return jax.shard_map(
            f, mesh=mesh, in_specs=given, out_specs=found, check_vma=False
        )

    def init(params: Any) -> OuterState:
        found = _state_specs(outer, mesh, params, specs)
        return mapped(outer.init, (specs,), found)(params)

    def update(params: Any, state: OuterState) -> tuple[Any, OuterState]:
        both = (specs, _state_specs(outer, mesh, params, specs))
        return mapped(outer.update, both, both)(params, state)

    def join(common: Common) -> tuple[Any, OuterState]:
        found = _state_specs(outer, mesh, common.anchor, specs)
        return mapped(outer.join, (found.common,), (specs, found))(common)

    return outer._replace(init=jax.jit(init), update=update, join=jax.jit(join))


def _state_specs(
    outer: OuterOptimizer, mesh: Mesh, params: Any, specs: Any
) -> OuterState:
    """Cuts of a state: as the parameters where it has their shape, else by message."""

    def one(spec: PartitionSpec, tree: Any) -> Any:
        cut = NamedSharding(mesh, spec)
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(cut.shard_shape(x.shape), x.dtype), tree
        )

    is_spec = {"is_leaf": lambda x: isinstance(x, PartitionSpec)}
    state = jax.eval_shape(outer.init, jax.tree.map(one, specs, params, **is_spec))
    whole, message = PartitionSpec(), PartitionSpec(None, outer.strategy.within)

    def held(tree: Any) -> Any:
        return jax.tree.map(lambda x: message if x.ndim > 1 else whole, tree)

    common = jax.tree.map(lambda _: whole, state.common._replace(anchor=()))
    own = jax.tree.map(lambda _: whole, state.own._replace(residual=()))
    return OuterState(
        common._replace(
            anchor=specs,
            momentum=specs if jax.tree.leaves(state.common.momentum) else (),
            held=held(state.common.held),
        ),
        own._replace(
            residual=specs if jax.tree.leaves(state.own.residual) else (),
            snapshot=message,
            held=held(state.own.held),
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
