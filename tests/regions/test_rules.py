"""The outer optimiser against the rules in plain numpy, and its exact special cases."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagom_jax.regions import cocodc, diloco, streaming
from tests.depth import examples
from tests.regions.rendering import Rendering
from tests.regions.worlds import flat, flat_one, masks, same_everywhere, trees, vmapped

REGIONS = 3
few = examples(by_day=4, by_night=30)


def pushes(seed, shape, dyadic=False):
    """What an inner step does to the parameters of each region, as data."""
    rng = np.random.default_rng(seed)
    if dyadic:
        return rng.integers(-8, 9, shape).astype(np.float32) / 64
    return rng.normal(size=shape).astype(np.float32) * 0.1


def run(outer, params, steps, seed, regions=REGIONS, dyadic=False):
    """The parameters after each update, and the state at the end."""
    init, update = vmapped(outer)
    world = same_everywhere(params, regions)
    state = init(world)
    seen = []
    for step in range(steps):
        push = pushes([seed, step], flat(world).shape, dyadic)
        world = moved(world, push)
        world, state = update(world, state)
        seen.append(flat(world))
    return seen, state


def moved(world, push):
    leaves, structure = jax.tree.flatten(world)
    at, new = 0, []
    for leaf in leaves:
        size = leaf[0].size
        new.append(leaf + push[:, at : at + size].reshape(leaf.shape))
        at += size
    return jax.tree.unflatten(structure, new)


@pytest.mark.slow
@few
@given(trees(least=2), st.data())
def test_it_does_what_the_rules_say(params, data):
    fragments = data.draw(st.integers(1, len(jax.tree.leaves(params))))
    interval = data.draw(st.integers(1, 3))
    delay = data.draw(st.integers(0, fragments * interval - 1))
    adaptive = data.draw(st.booleans())
    bits = data.draw(st.sampled_from([32, 16, 8, 4]))
    compensation = data.draw(st.sampled_from([0.0, 0.5, 40.0]))
    spare = data.draw(st.integers(0, 4)) if adaptive else 0
    period = fragments * interval + spare
    rates = {"outer_learning_rate": 0.7, "momentum": 0.9, "mixing": 0.25}
    outer = cocodc(
        "region",
        period=period,
        fragments=fragments,
        delay=delay,
        compensation=compensation,
        adaptive=adaptive,
        link_use=1.0,
        send_steps=float(interval),
        bits=bits,
        inner_learning_rate=0.5,
        **rates,
    )
    assert outer.cadence.interval == interval
    rendering = Rendering(
        flat(same_everywhere(params, REGIONS)),
        masks(params, fragments),
        period=period,
        delay=delay,
        interval=interval,
        eta=0.7,
        mu=0.9,
        alpha=0.25,
        lam=compensation,
        inner=0.5,
        adaptive=adaptive,
        bits=bits,
    )
    seed = data.draw(st.integers(0, 1000))
    steps = 4 * fragments * interval
    init, update = vmapped(outer)
    world = same_everywhere(params, REGIONS)
    state = init(world)
    for step in range(steps):
        # From the same point, so that a rounding that falls on the other side of a
        # quantum does not spread.
        push = pushes([seed, step], rendering.local.shape)
        world = moved(world, push)
        rendering.local += push
        world, state = update(world, state)
        rendering.update()
        np.testing.assert_allclose(flat(world), rendering.local, rtol=2e-5, atol=2e-5)
    counts = np.bincount([p for _, p in rendering.sends], minlength=fragments)
    assert state.common.sent.tolist() == counts.tolist()
    np.testing.assert_allclose(
        flat_one(state.common.anchor), rendering.anchor, atol=2e-5
    )


@pytest.mark.slow
@few
@given(trees(), st.integers(0, 1000))
def test_one_region_period_one_is_plain_training(params, seed):
    outer = diloco("region", period=1, outer_learning_rate=1.0, momentum=0.0)
    seen, state = run(outer, params, 5, seed, regions=1, dyadic=True)
    plain = flat(same_everywhere(params, 1))
    for step, found in enumerate(seen):
        plain = plain + pushes([seed, step], plain.shape, dyadic=True)
        # To the last bit.
        assert (found == plain).all()
    assert (flat_one(state.common.anchor) == plain[0]).all()


@pytest.mark.slow
@few
@given(trees(), st.integers(0, 1000), st.integers(1, 4))
def test_one_fragment_without_delay_or_mixing_is_diloco(params, seed, period):
    rates = {"outer_learning_rate": 0.7, "momentum": 0.9, "bits": 32}
    whole = {"period": period, "fragments": 1, "delay": 0, "mixing": 0.0}
    found, _ = run(streaming("region", **whole, **rates), params, 9, seed)
    expected, _ = run(diloco("region", period=period, **rates), params, 9, seed)
    for one, other in zip(found, expected, strict=True):
        assert (one == other).all()
    # And DiLoCo is what its own paper says, written down once more.
    local = flat(same_everywhere(params, REGIONS))
    anchor, v = local[0].copy(), np.zeros_like(local[0])
    for step, one in enumerate(found, 1):
        local = local + pushes([seed, step - 1], local.shape)
        if step % period == 0:
            mean = (anchor - local).mean(0)
            v = np.float32(0.9) * v + mean
            anchor = anchor - np.float32(0.7) * (mean + np.float32(0.9) * v)
            local = np.repeat(anchor[None], REGIONS, 0)
        np.testing.assert_allclose(one, local, atol=1e-5)


@pytest.mark.slow
@few
@given(trees(least=3), st.integers(0, 1000), st.sampled_from([32, 8, 4]))
def test_without_compensation_and_in_turn_cocodc_is_streaming(params, seed, bits):
    shape = {"period": 9, "fragments": 3, "delay": 2, "mixing": 0.5, "bits": bits}
    bare = cocodc("region", **shape, compensation=0.0, adaptive=False)
    found, one = run(bare, params, 20, seed)
    expected, other = run(streaming("region", **shape), params, 20, seed)
    for first, second in zip(found, expected, strict=True):
        assert (first == second).all()
    for first, second in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert (np.asarray(first) == np.asarray(second)).all()


def test_without_delay_compensation_has_nothing_to_do():
    params = {"a": np.ones(3, np.float32)}
    shape = {"period": 4, "fragments": 1, "delay": 0, "mixing": 0.0, "adaptive": False}
    one, _ = run(cocodc("region", **shape, compensation=9.0), params, 9, 1)
    other, _ = run(cocodc("region", **shape, compensation=0.0), params, 9, 1)
    assert all((a == b).all() for a, b in zip(one, other, strict=True))


def test_a_region_that_agrees_with_the_global_value_is_left_alone():
    """Equal global and local gives no change, whatever it drifted meanwhile."""
    outer = cocodc(
        None,
        period=4,
        fragments=1,
        delay=3,
        mixing=0.0,
        adaptive=False,
        bits=32,
        outer_learning_rate=1.0,
        momentum=0.0,
        compensation=7.0,
    )
    update = jax.jit(outer.update)
    params = jnp.linspace(-1.0, 1.0, 64)
    state = outer.init(params)
    for step in range(20):
        params = params + 0.01 * (step + 1)
        before = params
        params, state = update(params, state)
        np.testing.assert_allclose(params, before, atol=2e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_parameters_keep_their_type(dtype):
    outer = cocodc("region", period=2, fragments=1, delay=1, adaptive=False)
    init, update = vmapped(outer)
    params = {"w": jnp.ones((2, 65), dtype)}
    state = init(params)
    for _ in range(4):
        params, state = update(params, state)
    assert params["w"].dtype == dtype
    assert state.common.anchor["w"].dtype == dtype
    assert state.common.momentum["w"].dtype == "float32"
