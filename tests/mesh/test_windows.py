"""Laws of what hides behind the kernels of a layer."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagom_jax.cluster import Cluster
from lagom_jax.cost.model import CostModel
from lagom_jax.mesh.estimate import estimate
from lagom_jax.mesh.flows import Flow, slot_bytes
from lagom_jax.mesh.frameworks import framework_named
from lagom_jax.mesh.layer_seconds import layer_seconds
from lagom_jax.mesh.mesh_memory import mesh_memory
from lagom_jax.mesh.mesh_prices import MeshPrices
from lagom_jax.mesh.messages import Message, combined, seconds_of
from lagom_jax.mesh.model_shape import PLACES, published_shape
from lagom_jax.mesh.sizes import MeshSizes, StepBatch
from lagom_jax.mesh.windows import (
    Windows,
    late_again,
    late_behind_chain,
    late_forward,
)

XLA = framework_named("xla")
SECONDS = st.floats(0.0, 10.0)
WINDOWS = st.builds(Windows, SECONDS, SECONDS, SECONDS)
MESSAGES = st.lists(
    st.builds(
        Message,
        st.just("all-gather"),
        st.just(1),
        st.just(("fsdp",)),
        SECONDS,
        st.sampled_from(PLACES),
    ),
    max_size=8,
)
RULES = (
    late_forward,
    lambda messages, windows: late_forward(messages, windows, chained=True),
    late_again,
    late_behind_chain,
)


@pytest.mark.parametrize("rule", RULES)
@given(messages=MESSAGES, windows=WINDOWS)
def test_waiting_lies_between_what_nothing_hides_and_everything(
    rule, messages, windows
):
    late = rule(messages, windows)
    first = seconds_of([one for one in messages if one.place == "entering"])
    everything = seconds_of(messages)
    assert max(first, everything - windows.seconds) <= late + 1e-9
    assert late <= everything + 1e-9


@given(messages=MESSAGES, windows=WINDOWS)
def test_a_chain_hides_no_more(messages, windows):
    late = late_forward(messages, windows)
    assert late <= late_forward(messages, windows, chained=True) + 1e-9
    assert late_again(messages, windows) <= late_behind_chain(messages, windows) + 1e-9


def test_the_last_weights_pass_attention_only_where_nothing_stands_between():
    sent = [Message("all-gather", 1, ("fsdp",), 4.0, "leaving")]
    windows = Windows(1.0, 2.0, 1.0)
    assert late_forward(sent, windows) == 0.0
    assert late_forward(sent, windows, chained=True) == 3.0


@given(st.lists(st.integers(1, 40), max_size=12), st.integers(1, 60))
def test_what_is_combined_is_everything_once(sizes, limit):
    flows = [Flow("all-gather", ("fsdp",), n, 1, "forward", "weights") for n in sizes]
    bundles = combined(flows, limit)
    assert sorted(f.nbytes for one in bundles for f in one) == sorted(sizes)
    for bundle in bundles:
        assert len(bundle) == 1 or sum(one.nbytes for one in bundle) <= limit


def test_what_comes_over_the_expert_axis_is_kept():
    shape, batch = published_shape("olmoe-1b-7b"), StepBatch(32, 2048)
    sizes = MeshSizes(expert=8, data=2, micro_batch=2)
    kept, whole = (
        mesh_memory(shape, one, batch, XLA).kept
        for one in (sizes, MeshSizes(data=16, micro_batch=2))
    )
    moved = slot_bytes(shape, sizes, batch, XLA)
    assert kept - whole == pytest.approx(2 * shape.layers * moved)


def test_a_layer_keeps_no_sum_that_is_in_no_gradient():
    batch = StepBatch(32, 2048)
    sizes = MeshSizes(tensor=2, data=8, micro_batch=4)
    edge = 4 * 2048 * 2
    for name, kept in (("phi-2", 1), ("llama-3-8b", 2)):
        shape = published_shape(name)
        found = mesh_memory(shape, sizes, batch, XLA).kept
        assert found == kept * shape.layers * edge * shape.width


@pytest.mark.parametrize("name", ["llama-3-8b", "phi-2", "olmoe-1b-7b"])
def test_newer_gpus_write_more_of_the_softmax_that_is_computed_again(name):
    shape, batch = published_shape(name), StepBatch(32, 2048)
    shares = []
    for cluster in ("a100:2x8", "h100:2x8", "b200:2x8"):
        prices = MeshPrices(CostModel.of(Cluster.parse(cluster)))
        sizes = MeshSizes(data=16, micro_batch=2)
        found = layer_seconds(shape, sizes, batch, XLA, prices)
        shares.append(found.again.attending / found.windows.attending)
    assert shares == sorted(shares)


def test_gathers_of_a_cut_sequence_hide_where_no_weights_are_gathered():
    shape, batch = published_shape("llama-3-8b"), StepBatch(32, 2048)
    prices = MeshPrices(CostModel.of(Cluster.parse("h100:2x8")))
    sizes = MeshSizes(data=8, tensor=2, tensor_sequence=True, micro_batch=4)
    whole, cut = (
        estimate(shape, one, batch, XLA, prices).exposed["entering matrices"]
        for one in (sizes, dataclasses.replace(sizes, data=1, fsdp=8))
    )
    assert whole < cut
