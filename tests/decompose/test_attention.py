"""Attention in slices of queries equals attention on one device, with its gradients."""

import pytest

from tests.decompose.on_devices import Devices


@pytest.fixture(scope="module")
def devices():
    running = Devices()
    yield running
    running.close()


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "ring"},
        {"kind": "direct", "slices": 2},
        {"kind": "chunks", "slices": 3},
    ],
    ids=str,
)
def test_cut_over_heads_with_its_output_projection(devices, options):
    found = devices.answer(ask="attention", layer="heads", options=options)
    assert set(found) == {"y", "dq", "dk", "dv", "dw"}
    assert max(found.values()) < 2e-5, found


@pytest.mark.parametrize("slices", [1, 2, 3])
def test_cut_over_the_sequence(devices, slices):
    # 5 positions of each rank: neither 2 nor 3 slices divide them.
    found = devices.answer(ask="attention", layer="ulysses", options={"slices": slices})
    assert set(found) == {"y", "dq", "dk", "dv", "dw"}
    assert max(found.values()) < 2e-5, found
