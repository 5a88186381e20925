"""State of the outer optimiser, and what decides about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from lagom_jax.regions.cadence import Cadence
from lagom_jax.regions.fragments import Pattern, Rule

Tree = Any


class Common(NamedTuple):
    """Part of the state that is the same in all regions."""

    step: jax.Array
    """Inner steps so far."""
    anchor: Tree
    """The global parameters."""
    momentum: Tree
    """Of the outer optimiser, in float32; nothing where it has none."""
    last: jax.Array
    """The step after which each fragment was last sent; 0 for never."""
    rate: jax.Array
    """Change of each fragment of the global parameters per step; infinite at first."""
    sent: jax.Array
    """Sends of each fragment so far."""
    fragment: jax.Array
    """Of each exchange that is under way: its fragment, -1 for none."""
    gap: jax.Array
    """Of each exchange that is under way: steps since the fragment's send before."""
    held: Any
    """The carrier's state of each exchange that is under way."""


class Own(NamedTuple):
    """Part of the state that is each region's own."""

    residual: Tree
    """Values that compression has left unsent, in float32; nothing for 32 bits."""
    snapshot: jax.Array
    """Of each exchange that is under way: the fragment as it was when it was sent."""
    refused: jax.Array
    """Messages of this region that were not finite, and did not count."""
    missed: jax.Array
    """Exchanges in which no region's message counted."""
    held: Any
    """The carrier's state of each exchange that is under way."""


class OuterState(NamedTuple):
    """State of the outer optimiser, a tree that is saved and restored as any other."""

    common: Common
    own: Own


class OuterOptimizer(NamedTuple):
    """A pair of functions in the manner of optax.

    `init(params)` makes a state; `update(params, state)` belongs after every inner
    step, and returns both anew. Both can be jitted; where regions lie along an axis of
    a mesh, they are called under `shard_map`.
    """

    init: Callable[[Tree], OuterState]
    update: Callable[[Tree, OuterState], tuple[Tree, OuterState]]
    join: Callable[[Common], tuple[Tree, OuterState]]
    """Parameters and a state for a region that comes later, from what all share."""
    cadence: Cadence
    strategy: Strategy


@dataclasses.dataclass(frozen=True, slots=True)
class Strategy:
    """Everything that decides what an outer optimiser does, but its cadence."""

    outer_learning_rate: float
    momentum: float
    mixing: float
    """The share of a region's own value in what it goes on with, from 0 to 1."""
    compensation: float
    """Strength of the second-order term of delay compensation; 0 for neither."""
    inner_learning_rate: float
    """By which `compensation` is divided."""
    bits: int
    pattern: Pattern = "strided"
    rule: Rule | None = None
    within: tuple[str, ...] = ()
    """Mesh axes that cut one region's parameters."""
