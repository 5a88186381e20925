"""Fragments, compression, and a state that is interrupted, moved and healed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType

from lagom_jax.errors import RegionError
from lagom_jax.regions import cocodc, diloco, resized, stacked, streaming
from lagom_jax.regions.compression import decode, encode, from_bytes, shapes, to_bytes
from lagom_jax.regions.fragments import Fragments
from lagom_jax.regions.volume import kept_bytes, message_bytes
from tests.depth import examples
from tests.regions.rendering import through_wire
from tests.regions.worlds import flat, flat_one, same_everywhere, trees, vmapped

ZOO = {
    "outer": {"embedding": np.ones((5, 3), np.float32), "norm": np.ones(3, np.float32)},
    "layers": {"w": np.ones((6, 3, 3), np.float32), "b": np.ones((6, 3), np.float32)},
}


@given(trees(), st.data())
def test_every_number_is_in_exactly_one_fragment(params, data):
    count = data.draw(st.integers(1, len(jax.tree.leaves(params))))
    cut = Fragments.of(params, count)
    assert len(cut.parts) == count
    assert all(cut.parts)
    found = [np.zeros(leaf.shape, int) for leaf in jax.tree.leaves(params)]
    for part in cut.parts:
        for piece in part:
            one = piece.put(
                jnp.zeros(found[piece.leaf].shape, int), jnp.ones(piece.shape)
            )
            found[piece.leaf] += np.asarray(one) if piece.rows else 1
    assert all((marks == 1).all() for marks in found)


@pytest.mark.parametrize(
    ("pattern", "rows"),
    [("strided", [(0, 5, 2), (1, 6, 2)]), ("sequential", [(0, 3, 1), (3, 6, 1)])],
)
def test_layers_make_fragments_and_embeddings_have_their_own(pattern, rows):
    cut = Fragments.of(ZOO, 3, pattern)
    assert cut.sizes[0] == 18
    assert [part[0].rows for part in cut.parts[1:]] == rows


def test_layers_are_found_by_their_numbers():
    params = {"head": np.ones(2), **{f"block_{n}": {"w": np.ones(4)} for n in range(4)}}
    cut = Fragments.of(params, 3)
    assert cut.sizes == (2, 8, 8)
    as_list = {"head": np.ones(2), "layers": [np.ones(4) for _ in range(4)]}
    assert Fragments.of(as_list, 3).sizes == (2, 8, 8)


def test_the_user_may_say_what_belongs_together():
    def rule(names, shape):
        return [row // 3 for row in range(6)] if names[0] == "layers" else 2

    assert Fragments.of(ZOO, 3, rule=rule).sizes == (36, 36, 18)
    with pytest.raises(RegionError, match="leaves fragment 3 of 4 empty"):
        Fragments.of(ZOO, 4, rule=rule)
    with pytest.raises(RegionError, match=r"outer.embedding into fragment 2"):
        Fragments.of(ZOO, 2, rule=rule)
    with pytest.raises(RegionError, match="at most 7"):
        Fragments.of(ZOO, 8)


@examples(by_day=12, by_night=200)
@given(st.integers(0, 10**6), st.sampled_from([32, 16, 8, 4]), st.floats(-20, 20))
def test_messages_are_what_they_should_be(seed, bits, exponent):
    values = np.random.default_rng(seed).normal(size=192).astype(np.float32)
    values *= np.float32(2.0**exponent)
    values[:64] *= seed % 2  # perhaps a block of zeros
    message = encode(jnp.asarray(values), bits)
    found = np.asarray(decode(message, bits))
    # Where a value lies in the middle of two, either is right.
    expected = through_wire(values, bits)
    assert np.abs(values - found).max() <= np.abs(values - expected).max() * (1 + 1e-5)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-30)
    data = to_bytes(message)
    assert len(data) == message_bytes(192, bits)
    again = decode(from_bytes(data, 192, bits), bits)
    assert (again == found).all()
    told = shapes(192, bits)
    assert [x.dtype for x in told] == [x.dtype for x in message]


def test_error_feedback_loses_nothing_in_the_long_run():
    """With 4 bits and a constant push, what arrives adds up to what was pushed."""
    outer = cocodc(
        None,
        period=1,
        fragments=1,
        delay=0,
        adaptive=False,
        bits=4,
        outer_learning_rate=1.0,
        momentum=0.0,
        mixing=0.0,
    )
    update = jax.jit(outer.update)
    push = jnp.linspace(0.001, 1.0, 64)
    params = jnp.zeros(64)
    state = outer.init(params)
    for _ in range(50):
        params, state = update(state.common.anchor + push, state)
    # The last message's error is all that is missing.
    np.testing.assert_allclose(params, 50 * push, atol=0.2)


def pushed(params, step):
    keys = np.random.default_rng(step)
    return jax.tree.map(
        lambda x: x + 0.1 * keys.normal(size=x.shape).astype(np.float32), params
    )


SHAPE = {"period": 9, "fragments": 3, "delay": 4, "adaptive": False}


def steps_from(update, params, state, first, last):
    for step in range(first, last + 1):
        params, state = update(pushed(params, step), state)
    return params, state


def test_saved_in_flight_and_restored_it_is_the_same(tmp_path):
    init, update = vmapped(cocodc("region", **SHAPE))
    world = same_everywhere(ZOO, 2)
    params, state = steps_from(update, world, init(world), 1, 8)
    assert (state.common.fragment >= 0).any()
    leaves, structure = jax.tree.flatten((params, state))
    kept = [np.asarray(leaf).copy() for leaf in leaves]
    whole, end = steps_from(update, params, state, 9, 20)
    params, state = jax.tree.unflatten(structure, [jnp.asarray(x) for x in kept])
    again, other = steps_from(update, params, state, 9, 20)
    assert (flat(whole) == flat(again)).all()
    assert (flat_one(end.common.anchor) == flat_one(other.common.anchor)).all()


@pytest.mark.parametrize("regions", [1, 3])
def test_another_number_of_regions_goes_on_from_what_is_shared(regions):
    outer = cocodc("region", **SHAPE)
    init, update = vmapped(outer)
    world = same_everywhere(ZOO, 2)
    params, state = steps_from(update, world, init(world), 1, 8)
    before = flat_one(state.common.anchor)
    params, state = resized(outer, params, state, regions)
    assert flat(params).shape[0] == regions
    assert (flat_one(state.common.anchor) == before).all()
    if regions == 3:
        assert (flat(params)[2] == before).all()
    params, state = steps_from(update, params, state, 9, 20)
    assert np.isfinite(flat(params)).all()
    assert not (flat_one(state.common.anchor) == before).all()
    with pytest.raises(RegionError):
        resized(outer, params, state, 0)


def test_a_region_that_is_not_finite_is_refused_and_healed():
    init, update = vmapped(streaming("region", period=6, fragments=3, delay=2))
    world = same_everywhere(ZOO, 3)
    params, state = steps_from(update, world, init(world), 1, 5)
    broken = jax.tree.map(lambda x: x.at[1].set(jnp.nan), params)
    params, state = steps_from(update, broken, state, 6, 20)
    assert state.own.refused.tolist() == [0, 1, 0]
    assert np.isfinite(flat(params)).all()
    assert np.isfinite(flat_one(state.common.anchor)).all()
    # It is not only finite: it is where the others are.
    spread = np.abs(flat(params) - flat(params).mean(0)).max()
    assert spread < 2


def test_where_nobody_is_finite_nothing_is_taken_in():
    init, update = vmapped(diloco("region", period=2, bits=8))
    world = same_everywhere(ZOO, 2)
    state = init(world)
    broken = jax.tree.map(lambda x: x * jnp.nan, world)
    params, state = update(broken, state)
    params, state = update(params, state)
    assert state.own.missed.tolist() == [1, 1]
    assert (flat(params) == flat(world)).all()


def test_the_state_is_as_large_as_predicted():
    for outer in (
        diloco(None),
        streaming(None, period=8, fragments=3, delay=3),
        cocodc(None, period=30, fragments=3, delay=3, link_use=1.0, bits=16),
    ):
        state = outer.init(ZOO)
        measured = sum(x.nbytes for x in jax.tree.leaves(state))
        cut = Fragments.of(ZOO, outer.cadence.fragments)
        predicted = kept_bytes(
            sum(cut.sizes),
            bits=outer.strategy.bits,
            fragment=max(cut.sizes),
            in_flight=outer.cadence.in_flight,
            compensated=bool(outer.strategy.compensation),
        )
        # A few counters besides.
        assert 0 <= measured - predicted < 200


def test_it_starts_under_shard_map_from_parameters_that_all_regions_share():
    auto = (AxisType.Auto,)
    mesh = jax.make_mesh((1,), ("region",), axis_types=auto)
    own, same = jax.P("region"), jax.P()
    for bits in (32, 4):
        outer = cocodc("region", **SHAPE, bits=bits)

        def run(params, outer=outer):
            state = outer.init(params)
            for step in range(1, 10):
                params, state = outer.update(pushed(params, step), state)
            return jax.tree.map(lambda x: x[None], params), state.common.anchor

        mapped = jax.shard_map(run, mesh=mesh, in_specs=same, out_specs=(own, same))
        found = jax.jit(mapped)(ZOO)
        init, update = vmapped(outer)
        world = same_everywhere(ZOO, 1)
        expected, state = steps_from(update, world, init(world), 1, 9)
        np.testing.assert_allclose(flat(found[0]), flat(expected), atol=1e-6)
        np.testing.assert_allclose(
            flat_one(found[1]), flat_one(state.common.anchor), atol=1e-6
        )


def test_outside_of_its_axis_it_says_where_to_call_it():
    with pytest.raises(RegionError, match="shard_map over a mesh that has it"):
        cocodc("region", **SHAPE).init(ZOO)


def test_along_a_mesh_axis_as_along_an_axis_of_vmap():
    auto = (AxisType.Auto,)
    mesh = jax.make_mesh((1,), ("region",), axis_types=auto)
    for bits in (32, 4):
        outer = cocodc("region", **SHAPE, bits=bits)
        init, update = vmapped(outer)
        world = same_everywhere(ZOO, 1)
        found, _ = steps_from(update, world, init(world), 1, 9)
        placed = stacked(outer, mesh)
        state = placed.init(world)
        other, _ = steps_from(jax.jit(placed.update), world, state, 1, 9)
        np.testing.assert_allclose(flat(found), flat(other), atol=1e-6)


def test_on_a_quadratic_compensation_comes_nearer_to_no_delay():
    """Theory: (1 - k)|g| as it is, (1 - k)|g - local| with the first order."""
    rate, delay = 0.05, 5
    keep = (1 - rate) ** delay
    local = np.random.default_rng(0).normal(1.0, 0.1, 256)
    other = local + 0.4
    errors = {}
    drift = (keep - 1) / delay
    matched = (1 - keep) * rate / (delay * drift**2)
    for strength in (0.0, 1e-12, matched):
        outer = cocodc(
            "region",
            period=delay + 1,
            fragments=1,
            delay=delay,
            adaptive=False,
            bits=32,
            outer_learning_rate=1.0,
            momentum=0.0,
            mixing=0.0,
            compensation=strength,
            inner_learning_rate=rate,
        )
        init, update = vmapped(outer)
        world = jnp.asarray(np.stack([local, other]), jnp.float32)
        state = init(0 * world)
        for step in range(1, 2 * delay + 2):
            world = world * (1 - rate) if step > delay + 1 else world
            world, state = update(world, state)
        together = (local + other) / 2
        errors[strength] = np.abs(np.asarray(world[0]) - together * keep)
    plain, first, second = errors.values()
    np.testing.assert_allclose(plain, (1 - keep) * np.abs(together), rtol=1e-3)
    np.testing.assert_allclose(first, (1 - keep) * np.abs(together - local), rtol=1e-2)
    assert (first < plain).all()
    assert second.mean() < first.mean()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"bits": 5}, "must be one of"),
        ({"mixing": 1.0}, "below 1"),
        ({"momentum": -0.1}, "below 1"),
        ({"outer_learning_rate": 0.0}, "above 0"),
        ({"compensation": -1.0}, "not be negative"),
        ({"pattern": "random"}, "neither strided nor sequential"),
    ],
)
def test_what_makes_no_sense_is_refused(words, says):
    with pytest.raises(RegionError, match=says):
        cocodc("region", period=100, **words).init(ZOO)
