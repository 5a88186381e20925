"""The strategies by name: DiLoCo, Streaming DiLoCo and CoCoDC."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lagom_jax.errors import RegionError
from lagom_jax.regions.cadence import Cadence
from lagom_jax.regions.callbacks import Callbacks
from lagom_jax.regions.carriers import AlongAxis, Carrier, OneRegion
from lagom_jax.regions.compression import check_bits
from lagom_jax.regions.fragments import Pattern, Rule
from lagom_jax.regions.outer import make_outer
from lagom_jax.regions.outer_state import OuterOptimizer, Strategy

if TYPE_CHECKING:
    from lagom_jax.regions.exchange import Exchange


def diloco(
    axis: str | Exchange | None,
    *,
    period: int = 100,
    outer_learning_rate: float = 0.7,
    momentum: float = 0.9,
    bits: int = 32,
    within: tuple[str, ...] = (),
) -> OuterOptimizer:
    """DiLoCo: all parameters are exchanged after every `period` inner steps.

    Every region goes on from the new global parameters; the step that sends waits.

    Args:
        axis: The axis that regions lie along, an `Exchange` between processes, or None
            for a single region.
        period: Inner steps from exchange to exchange.
        outer_learning_rate: Of the outer optimiser, SGD with Nesterov momentum.
        momentum: Of the same.
        bits: Of each number on its way: 32, 16, 8 or 4.
        within: Mesh axes that cut one region's parameters, under `shard_map`.

    Raises:
        RegionError: Something cannot be as asked.

    Example:
        >>> import jax.numpy as jnp
        >>> outer = diloco(None, period=1, outer_learning_rate=1.0, momentum=0.0)
        >>> state = outer.init(jnp.ones(2))
        >>> outer.update(jnp.zeros(2), state)[0]
        Array([0., 0.], dtype=float32)
    """
    return streaming(
        axis,
        period=period,
        fragments=1,
        delay=0,
        outer_learning_rate=outer_learning_rate,
        momentum=momentum,
        mixing=0.0,
        bits=bits,
        within=within,
    )


def streaming(
    axis: str | Exchange | None,
    *,
    period: int = 100,
    fragments: int = 4,
    delay: int = 5,
    outer_learning_rate: float = 0.7,
    momentum: float = 0.9,
    mixing: float = 0.5,
    bits: int = 4,
    pattern: Pattern = "strided",
    rule: Rule | None = None,
    within: tuple[str, ...] = (),
) -> OuterOptimizer:
    """Streaming DiLoCo: fragments in turn, each while training goes on.

    Args:
        axis: As `diloco` takes it.
        period: Inner steps in which every fragment is sent once.
        fragments: How many there are.
        delay: Inner steps from a send to its arrival.
        outer_learning_rate: Of the outer optimiser.
        momentum: Of the same.
        mixing: The share of a region's own value in what it goes on with.
        bits: Of each number on its way.
        pattern: `strided` or `sequential`; see `Fragments`.
        rule: Says which leaf belongs to which fragment; see `Fragments`.
        within: Mesh axes that cut one region's parameters, under `shard_map`.

    Raises:
        RegionError: Something cannot be as asked.

    Example:
        >>> streaming("region", period=100, fragments=4, delay=5).cadence.interval
        25
    """
    return _outer(
        axis,
        Cadence.round_robin(period, fragments, delay),
        Strategy(
            *(outer_learning_rate, momentum, mixing, 0.0, 1.0),
            *(bits, pattern, rule, within),
        ),
    )


def cocodc(
    axis: str | Exchange | None,
    *,
    period: int = 100,
    fragments: int = 4,
    delay: int = 5,
    outer_learning_rate: float = 0.7,
    momentum: float = 0.9,
    mixing: float = 0.5,
    compensation: float = 0.5,
    adaptive: bool = True,
    link_use: float = 0.4,
    bits: int = 4,
    send_steps: float | None = None,
    inner_learning_rate: float = 1.0,
    pattern: Pattern = "strided",
    rule: Rule | None = None,
    within: tuple[str, ...] = (),
) -> OuterOptimizer:
    """CoCoDC: Streaming DiLoCo with compensated delays, and fragments by need.

    Args:
        axis: As `diloco` takes it.
        period: Inner steps in which every fragment is sent at least once.
        fragments: How many there are.
        delay: Inner steps from a send to its arrival.
        outer_learning_rate: Of the outer optimiser.
        momentum: Of the same.
        mixing: The share of a region's own value in what it goes on with.
        compensation: Strength of the second-order term of delay compensation; 0 takes
            a late fragment as it is, as Streaming DiLoCo does.
        adaptive: Whether the fragment that changes fastest is sent next, as often as
            `link_use` allows; otherwise they have their turns.
        link_use: The share of the time that the link may be in use.
        bits: Of each number on its way.
        send_steps: Duration of a send in inner steps; by default the whole delay.
        inner_learning_rate: By which `compensation` is divided, so that it is in units
            of the curvature over the squared gradient; by default the learning rate is
            taken to be a part of `compensation`.
        pattern: `strided` or `sequential`; see `Fragments`.
        rule: Says which leaf belongs to which fragment; see `Fragments`.
        within: Mesh axes that cut one region's parameters, under `shard_map`.

    Raises:
        RegionError: Something cannot be as asked.

    Example:
        >>> cocodc("region", period=100, fragments=4, delay=5).cadence.interval
        13
    """
    cadence = (
        Cadence.adaptive_within(period, fragments, delay, link_use, send_steps)
        if adaptive
        else Cadence.round_robin(period, fragments, delay)
    )
    if compensation < 0 or inner_learning_rate <= 0:
        raise RegionError(
            "compensation must not be negative, inner_learning_rate must be above 0"
        )
    # Without a delay there is nothing to compensate.
    strength = compensation if delay else 0.0
    return _outer(
        axis,
        cadence,
        Strategy(
            *(outer_learning_rate, momentum, mixing, strength, inner_learning_rate),
            *(bits, pattern, rule, within),
        ),
    )


def _outer(
    axis: str | Exchange | None, cadence: Cadence, strategy: Strategy
) -> OuterOptimizer:
    check_bits(strategy.bits)
    if not 0 <= strategy.mixing < 1 or not 0 <= strategy.momentum < 1:
        raise RegionError("mixing and momentum must be 0 or more and below 1")
    if strategy.outer_learning_rate <= 0:
        raise RegionError("outer_learning_rate must be above 0")
    carrier: Carrier
    if axis is None:
        carrier = OneRegion()
    elif isinstance(axis, str):
        carrier = AlongAxis(axis)
    else:
        carrier = Callbacks(axis, strategy.within)
    return make_outer(strategy, cadence, carrier)
