"""A second stream in a plan: chosen, compiled, and left out where it is not wanted."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from lagom_jax.cluster import Cluster
from lagom_jax.compile import compile_step, lower
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.replay import replay
from lagom_jax.cost.settings_of_plan import settings_of
from lagom_jax.plan.evidence import ORDER
from lagom_jax.planner import Budget, Planner, Request
from lagom_jax.planner.judge import Judge
from lagom_jax.program.program import Launch, Stream
from lagom_jax.scheduled import scheduled_of
from lagom_jax.settings.controls import named

from ..compile.conftest import array, mesh

CLUSTER = "h100:2x8"
BUDGET = Budget(compiles=2, evaluations=2000)
# Else there would be one gather of each kind.
APART = {"xla_gpu_all_gather_combine_threshold_bytes": 0}
LAYERS, WIDTH, BATCH = 4, 4096, 5120


@functools.cache
def step():
    """Weights come over the network for one chain of matmuls, over NVLink for another."""
    on = mesh(2, 8)
    whole = NamedSharding(on, P())

    def run(far, near, x, z):
        for one, other in zip(far, near, strict=True):
            x = jnp.tanh(x @ jax.lax.with_sharding_constraint(one, whole))
            z = jnp.tanh(z @ jax.lax.with_sharding_constraint(other, whole))
        return x, z

    def weights(axis):
        return [array(on, WIDTH, WIDTH, spec=P(axis)) for _ in range(LAYERS)]

    batch = array(on, BATCH, WIDTH)
    return jax.jit(run), (weights("data"), weights("model"), batch, batch)


@functools.cache
def planner():
    function, arguments = step()
    return Planner(function, *arguments, cluster=CLUSTER, compiler_options=APART)


@functools.cache
def plan_with(*levers):
    return planner().plan(Request(levers, budget=BUDGET))


def streams_of(plan):
    function, arguments = step()
    compiled = compile_step(
        lower(function, *arguments),
        Cluster.parse(CLUSTER),
        {**APART, **plan.compiler_options()},
        order=plan.order,
    )
    cluster = Cluster.parse(CLUSTER)
    view = Judge(cluster, named("tuner")).look(scheduled_of(compiled, cluster))
    model = CostModel.of(cluster)
    model = model.under(settings_of(plan, view.program, cluster))
    timeline = replay(view.program, model, model.contention())
    launches = [node for node in view.program.body if isinstance(node, Launch)]
    tuned = plan.evidence.tuned.step_seconds
    assert timeline.step_seconds == pytest.approx(tuned, rel=1e-9)
    return {
        stream: {
            cluster.domains_of(row)
            for one in launches
            if one.stream is stream
            for row in one.task.groups.members.tolist()
        }
        for stream in {one.stream for one in launches}
    }


def test_what_uses_other_links_gets_a_stream_of_its_own_and_a_shorter_step():
    one = plan_with("order", "settings")
    two = plan_with("order", "streams", "settings")
    assert not one.order.second_stream
    assert sum(map(len, two.order.second_stream.values())) == LAYERS
    assert two.evidence.tuned.step_seconds < 0.95 * one.evidence.tuned.step_seconds
    assert streams_of(two) == {Stream.COLLECTIVE: {2}, Stream.ASIDE: {1}}
    assert streams_of(one).keys() == {Stream.COLLECTIVE}


def test_the_plan_says_so():
    two = plan_with("order", "streams", "settings")
    (why,) = (lever.why for lever in two.levers if lever.name == ORDER)
    assert f"{LAYERS} collectives on a second stream" in why


def test_without_an_order_there_is_no_second_stream():
    plan = plan_with("streams", "settings")
    assert plan.order is None
    assert plan.levers == ()
    assert any("streams need order" in note for note in plan.notes)
    assert not any("streams" in note for note in plan_with("settings").notes)
