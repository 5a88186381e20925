"""Bytes in closed form are those of the compiled program, to the byte."""

from collections import defaultdict

import pytest

import lagom_models
from lagom_jax.cluster import Cluster
from lagom_jax.compile import compile_step, lower
from lagom_jax.hlo import read_module
from lagom_jax.mesh.flows import flows
from lagom_jax.mesh.frameworks import framework_named
from lagom_jax.mesh.model_shape import published_shape
from lagom_jax.mesh.sizes import MeshSizes, StepBatch
from lagom_jax.program.build import build_program

XLA = framework_named("xla")


def compiled_bytes(name: str, sizes: MeshSizes, batch: StepBatch, **more):
    step = lagom_models.build_on(name, sizes, batch, **more)
    compiled = compile_step(
        lower(step.function, *step.arguments), Cluster.parse("h100:2x8")
    )
    program = build_program(read_module(compiled.module_bytes))
    assert not program.unknown_loops()
    totals: defaultdict[tuple[str, int], int] = defaultdict(int)
    for collective, executions, _ in program.collectives():
        pairs = collective.kind == "collective-permute"
        size = sizes.pipeline if pairs else collective.groups.size
        totals[collective.kind, size] += collective.bytes * executions
    return dict(totals), step.model.config.shape


def closed_form(shape, sizes: MeshSizes, batch: StepBatch):
    totals: defaultdict[tuple[str, int], int] = defaultdict(int)
    for flow in flows(shape, sizes, batch, XLA):
        totals[flow.kind, sizes.size(flow.axes)] += flow.total
    return dict(totals)


# Every parallelism, its pairs with data parallelism that repeats weights and that cuts
# them, and micro batches whose gradients are added up.
MESHES = {
    "dp": MeshSizes(data=16),
    "fsdp": MeshSizes(fsdp=16),
    "tp-dp": MeshSizes(data=4, tensor=4),
    "tp-fsdp": MeshSizes(fsdp=4, tensor=4),
    "tp-sp-dp": MeshSizes(data=4, tensor=4, tensor_sequence=True),
    "tp-sp-fsdp": MeshSizes(fsdp=4, tensor=4, tensor_sequence=True),
    "pp-dp": MeshSizes(data=4, pipeline=4),
    "pp-fsdp": MeshSizes(fsdp=4, pipeline=4),
    "ep-dp": MeshSizes(data=4, expert=4, micro_batch=2),
    "ep-fsdp": MeshSizes(fsdp=4, expert=4, micro_batch=2),
    "tp-pp-dp": MeshSizes(data=4, tensor=2, pipeline=2),
    "tp-pp-fsdp": MeshSizes(fsdp=4, tensor=2, pipeline=2),
    "tp-sp-pp-fsdp": MeshSizes(fsdp=4, tensor=2, pipeline=2, tensor_sequence=True),
    "tp-ep-dp": MeshSizes(data=4, tensor=2, expert=2, micro_batch=2),
    "tp-sp-ep-fsdp": MeshSizes(
        fsdp=4, tensor=2, expert=2, micro_batch=2, tensor_sequence=True
    ),
    "ep-pp-dp": MeshSizes(data=4, expert=2, pipeline=2, micro_batch=2),
    "ep-pp-fsdp": MeshSizes(fsdp=4, expert=2, pipeline=2, micro_batch=2),
    "cp-dp": MeshSizes(data=4, sequence=4),
    "cp-fsdp": MeshSizes(fsdp=4, sequence=4),
    "cp": MeshSizes(sequence=16),
    "tp-ep-pp-fsdp": MeshSizes(fsdp=2, tensor=2, expert=2, pipeline=2, micro_batch=2),
}


# Each pair of axes that cut a model. Axes one by one are compiled by day, too, with the
# same formula asked: tests/models/test_traffic.py, and a model at its real size in
# tests/house/test_demo.py.
BY_DAY = {"tp-pp-dp", "tp-sp-pp-fsdp", "tp-sp-ep-fsdp", "tp-ep-pp-fsdp"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "way",
    [
        way if way in BY_DAY else pytest.param(way, marks=pytest.mark.nightly)
        for way in MESHES
    ],
)
def test_bytes_of_a_tiny_model(way):
    sizes = MESHES[way]
    name = "olmoe-1b-7b" if sizes.expert > 1 else "llama-3-8b"
    batch = StepBatch(sizes.replicas * sizes.micro_batch * 4, 64)
    found, shape = compiled_bytes(name, sizes, batch, tiny=True)
    assert found == closed_form(shape, sizes, batch)


REAL = {
    "phi-2": MeshSizes(fsdp=8, tensor=2, tensor_sequence=True, micro_batch=2),
    "llama-3-8b": MeshSizes(fsdp=16, micro_batch=2),
    "olmoe-1b-7b": MeshSizes(fsdp=4, expert=4, micro_batch=2),
}


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("name", REAL)
def test_bytes_at_real_sizes(name):
    sizes = REAL[name]
    batch = StepBatch(sizes.replicas * sizes.micro_batch, 2048)
    found, shape = compiled_bytes(name, sizes, batch)
    assert found == closed_form(shape, sizes, batch)


@pytest.mark.parametrize("name", lagom_models.names())
def test_the_shape_of_a_model_is_the_published_one(name):
    step = lagom_models.build(name, devices=16)
    assert step.model.config.shape == published_shape(name)


def totals(name, sizes, batch):
    found: defaultdict[tuple[str, tuple[str, ...]], int] = defaultdict(int)
    for flow in flows(published_shape(name), sizes, batch, XLA):
        found[flow.kind, flow.axes] += flow.total
    return dict(found)


def test_fsdp_sends_every_weight_thrice():
    shape, sizes = published_shape("llama-3-8b"), MeshSizes(fsdp=64)
    found = totals("llama-3-8b", sizes, StepBatch(64, 2048))
    outer = sum(weight.size for weight in shape.outer_weights())
    assert found["reduce-scatter", ("fsdp",)] == 2 * shape.parameters
    assert found["all-gather", ("fsdp",)] == 2 * (2 * shape.parameters - outer)


def test_sequences_over_the_tensor_axis_send_as_much_as_sums():
    batch = StepBatch(8, 2048)
    one = totals("llama-3-8b", MeshSizes(tensor=8, remat="none"), batch)
    cut = MeshSizes(tensor=8, remat="none", tensor_sequence=True)
    other = totals("llama-3-8b", cut, batch)
    both = other["all-gather", ("tensor",)] + other["reduce-scatter", ("tensor",)]
    small = sum(
        flow.total
        for flow in flows(published_shape("llama-3-8b"), cut, batch, XLA)
        if flow.kind == "all-reduce"
    )
    whole = one["all-reduce", ("tensor",)]
    # A sum over the axis is a reduce-scatter and an all-gather, each of its bytes.
    assert both == 2 * (whole - 3 * 8 * 2048 * 4)
    assert small < whole / 100


@pytest.mark.parametrize("axis", ["tensor", "pipeline", "expert", "sequence"])
def test_an_axis_of_one_device_sends_nothing(axis):
    how = framework_named("maxtext")
    shape = published_shape("mixtral-8x7b")
    found = flows(shape, MeshSizes(fsdp=8), StepBatch(8, 4096), how)
    assert all(axis not in flow.axes for flow in found)


def test_gradients_are_sent_once_where_they_are_kept():
    shape = published_shape("llama-3-8b")
    once = framework_named("megatron")
    few, many = (
        sum(
            flow.total
            for flow in flows(shape, MeshSizes(data=8), StepBatch(n, 2048), once)
            if flow.reason == "gradients"
        )
        for n in (8, 64)
    )
    assert few == many > 0
