"""What `build` promises before anything is compiled."""

import subprocess
import sys

import jax
import pytest
from jax.sharding import AbstractMesh

import lagom_models
from lagom_jax.errors import LagomError

# As the authors state them: model cards and papers, in billions.
PUBLISHED = {
    "phi-2": 2.78,
    "llama-3-8b": 8.03,
    "mpt-7b": 6.65,
    "deepseek-moe-16b": 16.38,
    "olmoe-1b-7b": 6.92,
}


@pytest.mark.parametrize("name", lagom_models.names())
def test_number_of_weights_is_the_published_one(name: str) -> None:
    step = lagom_models.build(name, devices=8)
    assert step.parameters / 1e9 == pytest.approx(PUBLISHED[name], abs=0.01)


@pytest.mark.parametrize("name", lagom_models.names())
def test_scanned_and_unrolled_have_the_same_weights(name: str) -> None:
    scanned = lagom_models.build(name, devices=8, tiny=True)
    unrolled = lagom_models.build(name, devices=8, tiny=True, scan=False)
    assert scanned.parameters == unrolled.parameters
    leaves = [len(jax.tree.leaves(s.arguments)) for s in (scanned, unrolled)]
    assert leaves[0] < leaves[1]


def test_arguments_are_shapes_on_a_mesh_without_devices() -> None:
    step = lagom_models.build("llama-3-8b", devices=512, parallelism="tp")
    for leaf in jax.tree.leaves(step.arguments):
        assert isinstance(leaf, jax.ShapeDtypeStruct)
        assert isinstance(leaf.sharding.mesh, AbstractMesh)
    assert dict(step.mesh.shape) == {"data": 64, "model": 8}


def test_fsdp_cuts_every_weight_over_all_devices() -> None:
    step = lagom_models.build("phi-2", devices=64)
    for leaf in jax.tree.leaves(step.arguments[0].weights):
        local = leaf.sharding.shard_shape(leaf.shape)
        assert leaf.size == 64 * jax.ShapeDtypeStruct(local, leaf.dtype).size


def test_state_is_float32_and_comes_back_as_it_went_in() -> None:
    step = lagom_models.build("olmoe-1b-7b", devices=8, parallelism="ep", tiny=True)
    state, loss = jax.eval_shape(step.function, *step.arguments)
    before = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), step.arguments[0])
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), state) == before
    assert {leaf.dtype.name for leaf in jax.tree.leaves(state.weights)} == {"float32"}
    assert loss.shape == ()


@pytest.mark.parametrize(
    ("name", "parallelism", "batch"),
    [
        ("phi-2", "fsdp", 2 * 8),
        ("mpt-7b", "fsdp", 1 * 8),
        ("phi-2", "tp", 8),
        ("llama-3-8b", "tp-sp", 4),
        ("mpt-7b", "tp-sliced", 2),
        ("deepseek-moe-16b", "ep", 2 * 8),
    ],
)
def test_default_batch(name: str, parallelism: str, batch: int) -> None:
    step = lagom_models.build(name, devices=8, parallelism=parallelism)
    assert (step.batch, step.sequence) == (batch, 2048)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "gpt-2"}, "the models are: phi-2, llama-3-8b"),
        ({"parallelism": "ep"}, "its choices are: dp, fsdp, tp, tp-sp"),
        ({"parallelism": "zero"}, "its choices are: dp, fsdp"),
        ({"parallelism": "tp", "devices": 12}, "it can be: 1, 2, 3, 4, 6, 12"),
        ({"parallelism": "tp", "model_axis": 16, "devices": 16}, "key-value heads: 8"),
        ({"parallelism": "tp-sliced", "batch": 3}, "batch: 3 does not divide by 2"),
        ({"parallelism": "tp-sp", "sequence": 100}, "sequence: 100"),
        ({"parallelism": "pp", "layers": 12}, "what divides it: 1, 2, 3, 4, 6, 12"),
        ({"parallelism": "pp", "micro_batches": 9}, "micro_batches: 9"),
        ({"devices": 24}, "divides over 24 devices of data"),
        ({"parallelism": "fsdp", "model_axis": 4}, "fsdp has no model axis"),
        ({"parallelism": "dp", "model_axis": 4}, "dp has no model axis"),
        ({"devices": 0}, "must be at least 1"),
        ({"batch": 0}, "must be at least 1"),
    ],
)
def test_what_does_not_fit_is_refused(
    arguments: dict[str, object], message: str
) -> None:
    wanted = {"name": "llama-3-8b", "devices": 8, **arguments}
    with pytest.raises(lagom_models.ModelError, match=message) as caught:
        lagom_models.build(**wanted)  # type: ignore[arg-type]
    assert isinstance(caught.value, LagomError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("missing", ["flax", "optax"])
def test_import_without_the_extra_says_how_to_get_it(missing: str) -> None:
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; sys.modules[{missing!r}] = None; "
        "import lagom_models"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert 'pip install "lagom_jax[models]"' in result.stderr


def test_attention_is_one_kernel_of_cudnn_where_asked() -> None:
    step = lagom_models.build("llama-3-8b", devices=8, layers=1, attention="cudnn")
    assert step.model.config.attention == "cudnn"
    with pytest.raises(LagomError, match="ALiBi"):
        lagom_models.build("mpt-7b", devices=8, attention="cudnn")
    with pytest.raises(LagomError, match="plain or cudnn"):
        lagom_models.build("phi-2", devices=8, attention="flash")


def test_the_largest_batch_fits_and_twice_as_much_does_not() -> None:
    asked = {"devices": 64, "sequence": 4096}
    found = lagom_models.largest_batch("llama-3-8b", memory_bytes=70e9, **asked)
    needed = [
        lagom_models.estimated_memory(
            lagom_models.build("llama-3-8b", batch=batch, **asked)
        )
        for batch in (found, 2 * found)
    ]
    assert needed[0] <= 70e9 < needed[1]


def test_a_batch_that_is_cut_in_two_is_never_one() -> None:
    found = lagom_models.largest_batch(
        "llama-3-8b", devices=16, parallelism="tp-sliced", memory_bytes=70e9
    )
    assert found > 1


def test_long_sequences_leave_less_room_unless_one_kernel_holds_their_scores() -> None:
    asked = {"devices": 64, "sequence": 8192, "memory_bytes": 70e9}
    plain = lagom_models.largest_batch("llama-3-8b", **asked)
    fused = lagom_models.largest_batch("llama-3-8b", attention="cudnn", **asked)
    assert plain < fused


def test_what_does_not_fit_at_all_says_so() -> None:
    with pytest.raises(LagomError, match="take more devices"):
        lagom_models.largest_batch("llama-3-8b", devices=1, memory_bytes=70e9)
    with pytest.raises(LagomError, match="does not divide"):
        lagom_models.largest_batch(
            "llama-3-8b", devices=6, parallelism="tp", model_axis=6, memory_bytes=70e9
        )
