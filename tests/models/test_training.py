"""Tiny configurations really train, and every parallelism trains the same model."""

import functools

import numpy as np
import pytest

import lagom_models
from tests.models.on_cpu import OnCpu

# A mixture's step takes seven times as long here, and it learns sooner.
STEPS, OF_A_MIXTURE = 12, 8

# Held by others by day: sums over data by `fsdp`, the two ways of a pair by the pair.
BY_NIGHT = ("dp", "tp-sp", "pp")
# A dense model in every way, a mixture in its own, and another block: layouts share
# their code, tests of traffic count the bytes of all pairs, and phi-2 trains in
# tests/scripts. The rest is for the night.
CASES = [
    *(
        pytest.param("llama-3-8b", way, marks=pytest.mark.nightly)
        if way in BY_NIGHT
        else ("llama-3-8b", way)
        for way in lagom_models.parallelisms("llama-3-8b")
    ),
    ("mpt-7b", "fsdp"),
    ("olmoe-1b-7b", "fsdp"),
    ("olmoe-1b-7b", "ep"),
    ("llama-3-8b", "tp-sp x pp"),
    *(
        pytest.param(*case, marks=pytest.mark.nightly)
        for case in [
            ("phi-2", "fsdp"),
            ("phi-2", "tp-sp"),
            ("mpt-7b", "tp-sliced"),
            ("mpt-7b", "cp"),
            ("olmoe-1b-7b", "cp"),
            ("olmoe-1b-7b", "tp x ep"),
            ("olmoe-1b-7b", "ep x pp"),
            ("olmoe-1b-7b", "tp"),
            ("olmoe-1b-7b", "pp"),
            ("deepseek-moe-16b", "fsdp"),
            ("deepseek-moe-16b", "ep"),
            ("deepseek-moe-16b", "tp-sp"),
        ]
    ),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, request):
    """Losses by step, and the first gradient of every weight."""
    folder = tmp_path_factory.mktemp("trained")
    words = ["nightly"] if request.config.getoption("--nightly") else []
    trainer = OnCpu("train_on_cpu.py", folder, *words)

    @functools.cache
    def found(name: str, way: str, loop: str = "scanned") -> dict[str, np.ndarray]:
        steps = OF_A_MIXTURE if "moe" in name else STEPS
        file = folder / f"{name} {way} {loop}.npz"
        trainer.answer(name, way, loop, steps, str(file))
        with np.load(file) as arrays:
            return dict(arrays)

    yield found
    trainer.close()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "parallelism"), CASES)
def test_loss_falls(trained, name: str, parallelism: str) -> None:
    losses = trained(name, parallelism)["losses"]
    # Guessing costs log(512) = 6.24; a batch that is seen again is remembered.
    assert 6.0 < losses[0] < 7.5
    assert losses[-1] < 0.4 * losses[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "parallelism"), [case for case in CASES if "fsdp" not in str(case)]
)
def test_every_parallelism_has_the_same_gradients(
    trained, name: str, parallelism: str
) -> None:
    # Losses alone would not tell: adamw forgives a gradient that is too large.
    expected, found = trained(name, "fsdp"), trained(name, parallelism)
    assert found.keys() == expected.keys()
    assert found["losses"][0] == pytest.approx(expected["losses"][0], abs=0.01)
    for weight, gradient in expected.items():
        if weight != "losses":
            # bfloat16 alone makes errors of up to 5 %; a sum that misses a device or
            # counts one twice, far more.
            error = np.linalg.norm(found[weight] - gradient)
            assert error < 0.1 * np.linalg.norm(gradient), weight


@pytest.mark.slow
@pytest.mark.parametrize(
    "parallelism", ["fsdp", pytest.param("pp", marks=pytest.mark.nightly)]
)
def test_unrolled_layers_train_the_same_model(trained, parallelism: str) -> None:
    scanned = trained("llama-3-8b", parallelism)["losses"]
    unrolled = trained("llama-3-8b", parallelism, "unrolled")["losses"]
    assert unrolled[:3] == pytest.approx(scanned[:3], abs=0.02)
