"""The choice: divisibility, memory, bounds, intervals, and answers where nothing fits."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest

from lagom_jax.cluster import Cluster
from lagom_jax.cost.ensemble import Ensemble
from lagom_jax.cost.model import CostModel
from lagom_jax.mesh import Asks, MeshError, MeshSizes, StepBatch, choose
from lagom_jax.mesh.candidates import candidates
from lagom_jax.mesh.estimate import estimate, kernel_bound
from lagom_jax.mesh.frameworks import framework_named
from lagom_jax.mesh.infeasible import infeasible
from lagom_jax.mesh.mesh_memory import mesh_memory
from lagom_jax.mesh.mesh_prices import MeshPrices
from lagom_jax.mesh.model_shape import published_shape, shape_of
from lagom_jax.mesh.pictures import communication_matrix
from lagom_jax.mesh.rules_of_thumb import RULES, by_rule
from lagom_jax.mesh.verify import LEAST_KERNELS
from lagom_jax.typed_json import typed

LLAMA, CLUSTER = published_shape("llama-3-8b"), Cluster.parse("h100:2x8")
BATCH = StepBatch(64, 2048)
LIKELIEST = Ensemble.of(CLUSTER, members=0)
FRAMEWORKS = ["xla", "maxtext", "megatron"]


def found_by(framework, asks=None):
    how = framework_named(framework)
    return how, candidates(LLAMA, CLUSTER, BATCH, how, asks or Asks()).found


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_mesh_has_all_devices_and_the_whole_batch(framework):
    how, found = found_by(framework)
    assert len(found) > 10
    for sizes in found:
        assert sizes.devices == CLUSTER.devices
        count = BATCH.micro_batches(sizes)
        assert count * sizes.replicas * sizes.micro_batch == BATCH.sequences
        needed = mesh_memory(LLAMA, sizes, BATCH, how).total
        assert needed <= Asks().memory_fraction * CLUSTER.gpu.memory_bytes


def test_micro_batches_of_experts_divide_into_their_parts():
    how = framework_named("xla")
    shape = published_shape("olmoe-1b-7b")
    found = candidates(shape, CLUSTER, BATCH, how, Asks()).found
    several = [sizes for sizes in found if sizes.expert > 1]
    assert several
    assert all(sizes.micro_batch % 2 == 0 for sizes in several)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_bounds_drop_no_better_mesh(framework):
    how, found = found_by(framework)
    prices = MeshPrices(LIKELIEST.likeliest)
    seconds = []
    for sizes in found:
        one = estimate(LLAMA, sizes, BATCH, how, prices).seconds
        assert kernel_bound(LLAMA, sizes, BATCH, how, prices) <= one
        seconds.append(one)
    advice = choose(
        LLAMA,
        cluster=CLUSTER,
        tokens=BATCH.tokens,
        sequence=BATCH.length,
        framework=how,
        ensemble=LIKELIEST,
        keep=3,
    )
    assert advice.evaluated <= len(found)
    best = [choice.step_seconds for choice in advice.choices]
    assert best == sorted(seconds)[:3]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_no_reason_waits_for_longer_than_it_sends(framework):
    how, found = found_by(framework)
    prices = MeshPrices(LIKELIEST.likeliest)
    for sizes in found:
        one = estimate(LLAMA, sizes, BATCH, how, prices)
        for reason, exposed in one.exposed.items():
            if reason == "handing on":
                # A pipeline that fills waits for what other stages send.
                continue
            assert 0 <= exposed <= one.sent[reason] * (1 + 1e-9), (sizes, reason)


def test_the_interval_is_the_ensembles():
    ensemble = Ensemble.of(CLUSTER, members=5)
    advice = choose(
        LLAMA, cluster=CLUSTER, tokens=131072, sequence=2048, ensemble=ensemble, keep=2
    )
    for choice in advice.choices:
        assert choice.step_low <= choice.step_seconds <= choice.step_high
    how = framework_named("xla")
    seen = [
        estimate(LLAMA, advice.best.sizes, BATCH, how, MeshPrices(model)).seconds
        for model in ensemble.members
    ]
    assert advice.best.step_high == pytest.approx(max(*seen, advice.best.step_seconds))


def test_routing_widens_the_interval_of_experts():
    shape = published_shape("mixtral-8x7b")
    sizes = MeshSizes(expert=8, fsdp=2)
    how = framework_named("maxtext")
    advice = choose(
        shape,
        cluster=CLUSTER,
        tokens=BATCH.tokens,
        sequence=BATCH.length,
        framework=how,
        ensemble=LIKELIEST,
    )
    experts = [one for one in advice.choices if one.sizes.expert > 1]
    assert experts
    assert all(one.step_high > one.step_seconds for one in experts)
    assert sizes.devices == 16


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_parts_add_up_to_the_step(framework):
    how, prices = framework_named(framework), MeshPrices(LIKELIEST.likeliest)
    for sizes in found_by(framework)[1]:
        step = estimate(LLAMA, sizes, BATCH, how, prices)
        kernels = step.compute_seconds + step.contention_seconds + step.bubble_seconds
        assert kernels + step.exposed_seconds == pytest.approx(step.seconds)
        hidden = sum(step.sent.values()) - step.exposed_seconds
        assert (step.contention_seconds > 0) == (hidden > 1e-9)
        assert step.contention_seconds <= hidden


def test_xla_hides_nothing_before_hopper():
    where, how = Cluster.parse("a40-nvlink:4x8"), framework_named("xla")
    prices = MeshPrices(CostModel.of(where))
    for sizes in (MeshSizes(fsdp=32), MeshSizes(tensor=2, data=16)):
        step = estimate(LLAMA, sizes, BATCH, how, prices)
        assert step.exposed == pytest.approx(step.sent)
        assert not step.contention_seconds


def test_gathers_of_many_arrays_and_many_gathers_take_longer():
    prices, sizes = MeshPrices(LIKELIEST.likeliest), MeshSizes(fsdp=16)
    how, shape = framework_named("xla"), published_shape("phi-2")
    flat, together, usual = (
        estimate(
            *(shape, sizes, BATCH),
            *(dataclasses.replace(how, combined_gather_bytes=limit), prices),
        ).sent["weights"]
        for limit in (0, 1 << 40, how.combined_gather_bytes)
    )
    assert flat < 0.8 * together
    assert together < 0.9 * usual


def test_an_all_reduce_hides_behind_less_than_a_reduce_scatter():
    how, prices = framework_named("xla"), MeshPrices(LIKELIEST.likeliest)
    shape = published_shape("olmoe-1b-7b")
    summed, scattered = (
        estimate(shape, sizes, StepBatch(32, 2048), how, prices)
        for sizes in (MeshSizes(data=2, expert=8), MeshSizes(fsdp=2, expert=8))
    )
    share = [
        one.exposed["gradients"] / one.sent["gradients"] for one in (summed, scattered)
    ]
    assert share[0] > 0.3 > 0.2 > share[1]


def test_interleaving_divides_the_bubble():
    how = framework_named("megatron")
    prices = MeshPrices(LIKELIEST.likeliest)
    one = MeshSizes(pipeline=4, data=4)
    more = dataclasses.replace(one, interleave=4)
    plain, divided = (
        estimate(LLAMA, sizes, BATCH, how, prices).bubble_seconds
        for sizes in (one, more)
    )
    assert divided == pytest.approx(plain / 4)


def test_a_pipelines_bubble_is_one_pass_of_its_other_stages():
    how = framework_named("megatron")
    prices = MeshPrices(LIKELIEST.likeliest)
    sizes = MeshSizes(pipeline=4, data=4)
    few, many = (
        estimate(LLAMA, sizes, StepBatch(count, 2048), how, prices)
        for count in (64, 256)
    )
    # 16 and 64 micro batches, and the same time to fill and to drain.
    assert few.bubble_seconds == pytest.approx(many.bubble_seconds)
    assert many.compute_seconds > 3 * few.compute_seconds


def test_tensor_parallelism_across_hosts_is_dropped():
    how = framework_named("maxtext")
    found = candidates(LLAMA, CLUSTER, BATCH, how, Asks()).found
    assert max(sizes.tensor for sizes in found) <= CLUSTER.scale_up_size


def test_order_of_ranks_decides_which_links_are_used():
    how = framework_named("megatron")
    prices = MeshPrices(LIKELIEST.likeliest)
    near = MeshSizes(tensor=8, data=2)
    far = dataclasses.replace(
        near, order=("data", "tensor", "sequence", "expert", "fsdp", "pipeline")
    )
    inside, across = (
        estimate(LLAMA, sizes, BATCH, how, prices).sent["leaving matrices"]
        for sizes in (near, far)
    )
    assert across > 2 * inside


def test_remats_keep_less_and_less():
    how = framework_named("megatron-deepspeed")
    sizes = MeshSizes(tensor=8, pipeline=2)
    kept = [
        mesh_memory(LLAMA, dataclasses.replace(sizes, remat=remat), BATCH, how).kept
        for remat in ("none", "selective", "full")
    ]
    assert kept == sorted(kept, reverse=True)
    assert len(set(kept)) == 3


@pytest.mark.parametrize(
    ("asks", "limit", "what"),
    [
        (Asks(remats=("none",), memory_fraction=0.15), "memory", "remat"),
        (Asks(micro_batch=64), "batch", "micro_batch"),
    ],
)
def test_what_binds_and_what_would_do(asks, limit, what):
    how = framework_named("xla")
    batch = StepBatch(32, 2048)
    found = candidates(LLAMA, CLUSTER, batch, how, asks)
    answer = infeasible(LLAMA, CLUSTER, batch, how, asks, found)
    assert answer.limit == limit
    assert what in {remedy.what for remedy in answer.remedies}


def test_the_smallest_cluster_that_would_do_is_the_smallest():
    shape, how = published_shape("llama-3-70b"), framework_named("xla")
    small = Cluster.parse("h100:1x8")
    found = candidates(shape, small, BATCH, how, Asks())
    answer = infeasible(shape, small, BATCH, how, Asks(), found)
    (larger,) = [one.value for one in answer.remedies if one.what == "cluster"]
    assert candidates(shape, Cluster.parse(larger), BATCH, how, Asks()).found
    for hosts in range(2, Cluster.parse(larger).hosts):
        fewer = Cluster.parse(f"h100:{hosts}x8")
        assert not candidates(shape, fewer, BATCH, how, Asks()).found


def test_tokens_must_be_whole_sequences():
    with pytest.raises(MeshError, match="take 4096"):
        choose("llama-3-8b", cluster="h100:1x8", tokens=5000, sequence=2048)


def test_dimensions_must_agree():
    sizes = {"vocabulary": 512, "width": 100, "layers": 2, "heads": 8, "hidden": 256}
    with pytest.raises(MeshError, match="heads"):
        shape_of(sizes)
    with pytest.raises(MeshError, match="width"):
        shape_of({**sizes, "width": "wide"})


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@pytest.mark.parametrize("framework", ["maxtext", "megatron"])
def test_a_rule_of_thumb_is_never_ahead(rule, framework):
    how = framework_named(framework)
    sizes = by_rule(rule, LLAMA, CLUSTER, BATCH, how)
    advice = choose(
        LLAMA,
        cluster=CLUSTER,
        tokens=BATCH.tokens,
        sequence=BATCH.length,
        framework=how,
        ensemble=LIKELIEST,
    )
    prices = MeshPrices(LIKELIEST.likeliest)
    other = estimate(LLAMA, sizes, BATCH, how, prices).seconds
    assert advice.best.step_seconds <= 1.01 * other


def test_the_matrix_adds_up_to_what_each_device_sends():
    advice = choose(
        LLAMA, cluster="h100:1x8", tokens=65536, sequence=2048, ensemble=LIKELIEST
    )
    sizes = MeshSizes(fsdp=4, tensor=2)
    matrix = communication_matrix(advice, sizes)
    assert matrix.shape == (8, 8)
    assert np.trace(matrix) == 0
    assert np.ptp(matrix.sum(axis=1)) < 1e-6 * matrix.sum()
    # Neighbours share the tensor axis, every other device the same weights.
    assert matrix[0, 1] > 0
    assert matrix[0, 2] > 0
    assert matrix[0, 3] == 0


def test_regions_are_slow_and_the_choice_knows():
    regions = Cluster.parse("2*h100:1x8@10gbps,80ms")
    how = framework_named("megatron")
    prices = MeshPrices(Ensemble.of(regions, members=0).likeliest)
    inside = MeshPrices(LIKELIEST.likeliest)
    sizes = MeshSizes(data=16)
    over, near = (
        estimate(LLAMA, sizes, BATCH, how, one).sent["gradients"]
        for one in (prices, inside)
    )
    assert over > 20 * near
    assert math.isfinite(over)


def test_bounds_are_below_every_compiled_step_on_record():
    folder = Path(__file__).parents[2] / "docs" / "reference" / "benchmarks"
    text = (folder / "mesh-truth.json").read_text()
    rows = json.loads(text)
    assert len(rows) >= 30
    for row in rows:
        where = Cluster.parse(row["cluster"])
        prices = MeshPrices(CostModel.of(where))
        sizes = typed(MeshSizes, row["mesh"])
        batch = StepBatch(2 * where.devices, 2048)
        args = published_shape(row["model"]), sizes, batch, framework_named("xla")
        assert LEAST_KERNELS * kernel_bound(*args, prices) < row["step_seconds"]
