"""The limit of XLA's scheduler, by XLA itself, and what the step may take instead."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from lagom_jax.cluster import Cluster
from lagom_jax.compile import compile_step, lower
from lagom_jax.options.memory import PERCENT, SLOP, MemoryRoom
from xla_flags import known

from ..compile.conftest import mesh

WIDTH, ROWS, LAYERS = 8192, 16384, 8
AGAIN = b".remat"


@pytest.fixture(scope="module")
def lowered():
    """Gradients through layers whose weights are gathered, and kept for later."""
    sharded = NamedSharding(mesh(8), P("data"))

    def loss(weights, x):
        for weight in weights:
            x = jnp.tanh(x @ weight)
        return jnp.sum(x.astype(jnp.float32))

    def one(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=sharded)

    weights = [one(WIDTH, WIDTH) for _ in range(LAYERS)]
    return lower(jax.jit(jax.grad(loss)), weights, one(8 * ROWS, WIDTH))


def with_memory(device_bytes):
    where = Cluster.parse("h100:1x8")
    gpu = dataclasses.replace(where.gpu, memory_bytes=device_bytes)
    return dataclasses.replace(where, system=dataclasses.replace(where.system, gpu=gpu))


def test_the_value_that_xla_has_is_the_one_that_is_reckoned_with():
    assert known()[SLOP].default == PERCENT


def test_with_the_option_xla_uses_what_the_step_may_take(lowered):
    device = 5 * 10**9
    small = with_memory(device)
    usual = compile_step(lowered, small)
    peak, kept = usual.memory.peak_bytes, usual.memory.kept_bytes
    found = MemoryRoom(peak, kept, int(0.97 * device), device)
    assert AGAIN in usual.module_bytes
    assert peak <= found.scheduler_limit
    more = compile_step(lowered, small, {SLOP: found.percent})
    assert AGAIN not in more.module_bytes
    assert peak < more.memory.peak_bytes <= found.limit_bytes
    # Where there is room from the start, nothing asks for more.
    roomy = compile_step(lowered, with_memory(2 * device))
    assert AGAIN not in roomy.module_bytes
    peak = roomy.memory.peak_bytes
    assert not MemoryRoom(peak, kept, int(1.9 * device), 2 * device).is_near_limit


def test_where_xla_counts_more_than_the_step_takes_it_may_count_on_more():
    """Until the step itself takes what it may."""
    begun = MemoryRoom(90, 20, 90, 100)
    assert begun.percent == 116
    again = dataclasses.replace(begun, peak_bytes=80, present=116)
    assert again.percent == int(116 * 70 / 60)
    assert dataclasses.replace(again, peak_bytes=88).percent is None


@given(
    device=st.integers(1 << 30, 1 << 38),
    kept=st.floats(0, 1.2),
    limit=st.floats(0.01, 1.0),
    present=st.integers(1, 300),
)
def test_a_full_step_is_asked_for_no_more_than_it_may_take(
    device, kept, limit, present
):
    kept, limit = int(kept * device), int(limit * device)
    room = MemoryRoom(limit, kept, limit, device, present)
    if room.percent is not None:
        assert room.percent > present
        left = 0.8 * device - kept
        assert kept + left * room.percent / 100 <= limit + 1
