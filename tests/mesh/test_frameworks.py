"""Laws of what frameworks send, repeat and hide."""

import dataclasses

import pytest

from lagom_jax.cluster import Cluster
from lagom_jax.cost.model import CostModel
from lagom_jax.mesh.estimate import estimate
from lagom_jax.mesh.flows import flows
from lagom_jax.mesh.frameworks import framework_named
from lagom_jax.mesh.mesh_memory import mesh_memory
from lagom_jax.mesh.mesh_prices import MeshPrices
from lagom_jax.mesh.model_shape import published_shape
from lagom_jax.mesh.published_runs import predicted_run
from lagom_jax.mesh.sizes import MeshSizes, StepBatch

GPT = published_shape("gpt-3-175b")
BATCH = StepBatch(64, 2048)
DEEPSPEED = framework_named("megatron-deepspeed")


def sent(sizes, framework, reason, kind=None):
    return sum(
        flow.total
        for flow in flows(GPT, sizes, BATCH, framework)
        if flow.reason == reason and kind in (None, flow.kind)
    )


@pytest.mark.parametrize(("name", "share"), [("megatron", 1.0), ("maxtext", 0.5)])
def test_a_layer_that_is_computed_again_sends_its_sums_again(name, share):
    framework, sizes = framework_named(name), MeshSizes(tensor=8, micro_batch=1)
    once = sent(dataclasses.replace(sizes, remat="none"), framework, "leaving matrices")
    twice = sent(sizes, framework, "leaving matrices")
    ends = BATCH.sequences * 2 * 2048 * GPT.width
    assert twice - once == share * (once - ends)


def test_parts_are_handed_on_and_gathered():
    sizes = MeshSizes(tensor=8, pipeline=8)
    whole = 64 * 2 * 2048 * GPT.width
    moved = sent(sizes, DEEPSPEED, "handing on", "collective-permute")
    assert moved == whole // 8 + whole
    assert sent(sizes, DEEPSPEED, "handing on", "all-gather") == whole
    other = framework_named("megatron")
    assert sent(sizes, other, "handing on", "collective-permute") == 2 * whole


def test_gradients_are_summed_in_the_type_that_they_are_kept_in():
    sizes = MeshSizes(data=8, tensor=8, pipeline=8)
    half = framework_named("megatron-deepspeed-fp16")
    wide = sent(sizes, DEEPSPEED, "gradients", "all-reduce")
    narrow = sent(sizes, half, "gradients", "reduce-scatter")
    assert wide == pytest.approx(2 * narrow, rel=0.001)


def test_attention_written_for_older_gpus_is_slow_on_new_ones():
    old, new = framework_named("fsdp"), framework_named("maxtext")
    assert old.on(8) == old
    assert new.on(10) == new
    assert old.on(9).attention_times == pytest.approx(old.attention_times * 0.60 / 0.35)
    assert old.on(9).on(9) == old.on(9)


def test_a_pipeline_fills_as_slowly_as_its_stages_wait():
    prices = MeshPrices(CostModel.of(Cluster.parse("a100:4x8")))
    sizes = MeshSizes(data=2, tensor=8, pipeline=2)
    hiding = dataclasses.replace(DEEPSPEED, hides_sums=True)
    found, less = (
        estimate(GPT, sizes, BATCH, how, prices) for how in (DEEPSPEED, hiding)
    )
    waits = found.exposed_seconds - less.exposed_seconds
    assert waits > 0
    # Of each micro batch's waits, those of one more.
    expected = waits / BATCH.micro_batches(sizes)
    assert found.bubble_seconds - less.bubble_seconds == pytest.approx(expected)


def test_gradients_of_micro_batches_cost_passes_over_memory():
    prices = MeshPrices(CostModel.of(Cluster.parse("a100:4x8")))
    light = dataclasses.replace(DEEPSPEED, added_bytes=0.0)

    def more(micro_batch):
        sizes = MeshSizes(tensor=8, pipeline=4, micro_batch=micro_batch)
        times = [
            estimate(GPT, sizes, BATCH, how, prices).compute_seconds
            for how in (DEEPSPEED, light)
        ]
        return times[0] - times[1]

    # 18 bytes for each weight of the stage: 64 times 65 ms.
    assert 2 < more(1) < 6
    assert more(1) == pytest.approx(2 * more(2), rel=0.01)


@pytest.mark.parametrize(
    ("cluster", "least"), [("h100:2x8", 0.25), ("a40-nvlink:2x8", 1.0)]
)
def test_traffic_of_one_part_hides_behind_the_other(cluster, least):
    prices = MeshPrices(CostModel.of(Cluster.parse(cluster)))
    shape = published_shape("olmoe-1b-7b")
    sizes = MeshSizes(expert=8, data=2, micro_batch=2)
    found = estimate(shape, sizes, StepBatch(32, 2048), framework_named("xla"), prices)
    reason = "tokens to experts and back"
    share = found.exposed[reason] / found.sent[reason]
    assert share == pytest.approx(least)


def test_narrow_operands_are_kept_narrow():
    how, sizes = framework_named("megatron"), MeshSizes(tensor=8, remat="none")
    kept = [
        mesh_memory(GPT, sizes, StepBatch(8, 2048, kind), how).kept
        for kind in ("bf16", "f8e4m3fn", "f4e2m1fn")
    ]
    assert kept == sorted(kept, reverse=True)
    assert kept[0] > 1.1 * kept[1]


ROW = {
    "framework": "Megatron-DeepSpeed",
    "gpu": "A100-80GB",
    "num_gpus": "384",
    "gbs_seqs": "2048",
    "mbs_seqs": "2",
    "seq_len": "2048",
    "tp": "8",
    "pp": "6",
    "layers": "72",
    "hidden": "14336",
}


@pytest.mark.parametrize(
    ("model", "least", "most"),
    # Layers alone are 177.6 billion; the name is rounded to half a billion.
    [("GPT 181B", 200_000, 262_144), ("GPT 178B", 51_200, 66_000)],
)
def test_the_size_in_a_name_tells_the_vocabulary(model, least, most):
    shape = predicted_run({**ROW, "model": model}).run.shape
    assert least <= shape.vocabulary <= most + 1024


@pytest.mark.parametrize(
    ("framework", "gpu", "precision", "name"),
    [
        ("Megatron-DeepSpeed", "A100-80GB", "bf16", "megatron-deepspeed"),
        ("Megatron-DeepSpeed", "A100-80GB", "", "megatron-deepspeed-16bit"),
        ("Megatron-DeepSpeed", "V100-32GB", "", "megatron-deepspeed-fp16"),
        ("Megatron-Bridge 25.09", "A100-80GB", "bf16", "megatron-bridge"),
        ("NeMo AutoModel (PyTorch)", "A100-80GB", "bf16", "automodel"),
        ("Something else", "A100-80GB", "bf16", "megatron"),
    ],
)
def test_a_row_is_predicted_by_its_framework(framework, gpu, precision, name):
    row = {**ROW, "framework": framework, "gpu": gpu, "precision": precision}
    run = predicted_run({**row, "model": "GPT 181B", "num_gpus": "384"}).run
    assert run.framework.name == name
