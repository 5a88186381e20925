"""Workloads: sizes and options searched together, and what bounds leave out."""

import jax
import jax.numpy as jnp
import pytest

from lagom_jax.cluster import Cluster
from lagom_jax.errors import LagomError
from lagom_jax.planner import Budget, Request, Workload, plan_workload

H100 = Cluster.parse("h100:1x1")
AS_IT_IS = Request(budget=Budget(compiles=1))


def built(width):
    if width % 8:
        raise LagomError(f"{width} does not divide")
    x = jax.ShapeDtypeStruct((width, width), "bfloat16")
    return (lambda x: jnp.tanh(x @ x)), (x,)


@pytest.mark.slow
def test_the_fastest_comes_first_and_reasons_come_last():
    found = plan_workload(Workload(built, H100), [512, 12, 256], AS_IT_IS)
    assert [one.sizes for one in found] == [256, 512, 12]
    assert found[2].refused == "12 does not divide"
    steps = [one.step_seconds for one in found[:2]]
    assert steps == sorted(steps)
    assert all(one.bound_seconds <= one.step_seconds for one in found[:2])


@pytest.mark.slow
def test_what_cannot_be_the_best_is_not_compiled():
    seconds = {256: 1e-6, 512: 3600.0}
    said = []
    request = Request(budget=Budget(compiles=1), progress=said.append)
    workload = Workload(built, H100, seconds.__getitem__)
    found = plan_workload(workload, [512, 256], request)
    assert [(one.sizes, one.plan is None) for one in found] == [
        (256, False),
        (512, True),
    ]
    assert "bound" in found[1].refused
    assert said[0].startswith("compiling configuration 1 of 2")
    both = plan_workload(workload, [512, 256], AS_IT_IS, prune=False)
    assert all(one.plan is not None for one in both)


@pytest.mark.slow
def test_arguments_that_overflow_are_not_compiled():
    request = Request(budget=Budget(compiles=1, memory_bytes=2_000_000))
    found = plan_workload(Workload(built, H100), [256, 1024], request)
    assert [one.plan is None for one in found] == [False, True]
    assert "overflow" in found[1].refused


@pytest.mark.slow
def test_what_takes_too_much_when_compiled_is_refused():
    # The arguments of both fit; with its results and workspace the wider one does not.
    request = Request(budget=Budget(compiles=1, memory_bytes=1_000_000))
    workload = Workload(built, H100)
    found = plan_workload(workload, [256, 128], request, prune=False)
    assert [(one.sizes, one.plan is None) for one in found] == [
        (128, False),
        (256, True),
    ]
    assert "compiled it takes" in found[1].refused


@pytest.mark.slow
def test_options_are_searched_where_a_configuration_may_still_win():
    mesh = jax.sharding.AbstractMesh((8,), ("data",))

    def split(parts):
        """Gathers what `parts` of a product need, one after the other."""
        spec = jax.sharding.NamedSharding(mesh, jax.P("data"))
        x = jax.ShapeDtypeStruct((4096, 4096), "bfloat16", sharding=spec)

        @jax.jit
        @jax.shard_map(mesh=mesh, in_specs=jax.P("data"), out_specs=jax.P("data"))
        def step(x):
            for _ in range(parts):
                x = jnp.tanh(x @ jax.lax.all_gather(x, "data", tiled=True))
            return x

        return step, (x,)

    budget = Budget(compiles=3)
    workload = Workload(split, Cluster.parse("h100:1x8"))
    found = plan_workload(workload, [8, 1], Request(("options",), budget=budget))
    assert [one.sizes for one in found] == [1, 8]
    # The long one is compiled once, since even without communication it is longer.
    assert found[1].plan.evidence.compiles == 1
    assert found[0].plan.evidence.compiles > 1
