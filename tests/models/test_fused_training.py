"""A tiny model trains the same with its collectives in slices, fused or not at all."""

import functools
import json

import numpy as np
import pytest

from tests.models.on_cpu import OnCpu

STEPS_AT_NIGHT = 50


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Losses, and a digest of what was trained."""
    trainer = OnCpu("train_fused_on_cpu.py", tmp_path_factory.mktemp("trained"))
    yield functools.cache(lambda *words: json.loads(trainer.answer(*words)))
    trainer.close()


def steps_of(request, by_day):
    return STEPS_AT_NIGHT if request.config.getoption("--nightly") else by_day


@pytest.mark.slow
@pytest.mark.parametrize(
    "way",
    [
        "commfuse",
        pytest.param("sliced", marks=pytest.mark.nightly),
        # The layers of the first, and the slices of the second, along other axes.
        pytest.param("commfuse-sp", marks=pytest.mark.nightly),
        pytest.param("half batches", marks=pytest.mark.nightly),
    ],
)
def test_it_trains_as_the_plain_one(trained, way, request):
    steps = steps_of(request, by_day=20)
    plain, found = (trained(one, steps, "remat")["losses"] for one in ("plain", way))
    # After 20 it has learned all there is, and no difference is left to grow.
    assert plain[-1] < 0.01 * plain[0]
    # Alike to the last bits of bfloat16 at first; later small differences grow.
    np.testing.assert_allclose(found[:5], plain[:5], rtol=5e-3)
    np.testing.assert_allclose(found, plain, rtol=0.1, atol=0.05)


@pytest.mark.slow
def test_slices_train_bit_by_bit_as_the_plain_one(trained, request):
    """Where XLA rounds as it was told to, and computes nothing again.

    With leave to skip roundings it does so in other fusions of slices. The loss that is
    told is a mean over both slices, in another kernel.
    """
    steps = steps_of(request, by_day=5)
    plain, found = (trained(one, steps, "exact") for one in ("plain", "sliced"))
    assert found["state"] == plain["state"]
    np.testing.assert_allclose(found["losses"], plain["losses"], rtol=1e-6)
