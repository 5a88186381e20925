"""What NCCL may be told beside what the user has set."""

import pytest

from lagom_jax.planner.allowed import allowed
from lagom_jax.settings.controls import PRESETS, named

COLLECTIVES = "xla_gpu_nccl_collective_max_nchannels"
SENDS = "xla_gpu_nccl_p2p_max_nchannels"
SUMS = {"all-reduce", "reduce-scatter"}


@pytest.mark.parametrize("name", PRESETS)
def test_nothing_set_leaves_everything_free(name):
    assert allowed(named(name)) == named(name)


@pytest.mark.parametrize("name", PRESETS)
def test_deterministic_leaves_sums_alone(name):
    left = set(allowed(named(name), deterministic=True).leaves)
    # A cap binds all-gathers and sums alike.
    assert left == (SUMS | {"all-gather"} if name == "caps" else SUMS)


def test_a_cap_that_is_set_stays():
    assert "all-gather" in allowed(named("caps"), pinned=[COLLECTIVES]).leaves
    assert allowed(named("tuner"), pinned=[COLLECTIVES]).leaves == ()
    left = allowed(named("tuner"), pinned=[SENDS]).leaves
    assert {"all-to-all", "collective-permute"} <= set(left)
    assert not set(left) & (SUMS | {"all-gather"})
