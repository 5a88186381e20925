"""Other people's libraries: a report and a plan at the first try."""

import jax
import numpy as np
import pytest

import lagom_jax
from lagom_jax.cli import main
from tests.programs.steps import STEPS

LIBRARY = {"flax_linen": "flax", "flax_nnx": "flax", "halo_exchange": "jax"}
CLUSTER = "h100:1x8"

pytestmark = [pytest.mark.nightly, pytest.mark.slow]


@pytest.fixture(params=STEPS)
def name(request):
    """The name of a step whose library is installed."""
    pytest.importorskip(LIBRARY.get(request.param, request.param))
    return request.param


def test_a_report_at_the_first_try(name, capsys):
    subject = f"tests/programs/steps.py:{name}"
    assert main(["report", subject, "--cluster", CLUSTER]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{name} on {CLUSTER} (8 devices)")
    assert "CAUTION" not in shown
    assert "steps.py:" in shown
    assert "<unnamed" not in shown


def test_a_plan_at_the_first_try(name, tmp_path):
    subject = f"tests/programs/steps.py:{name}"
    plan = tmp_path / "plan.json"
    words = ["tune", subject, "--cluster", CLUSTER, "--compiles", "3"]
    assert main([*words, "--output", str(plan)]) == 0
    assert plan.exists()


@pytest.mark.parametrize("mode", ["report", "tune"])
def test_losses_are_equal_in_all_digits(name, mode):
    """Three steps with numbers in the place of shapes, tuned and not."""

    def run(wrap):
        step, arguments = STEPS[name](8)
        random = np.random.default_rng(0)

        def filled(leaf):
            if not isinstance(leaf, jax.ShapeDtypeStruct):
                return leaf
            if np.issubdtype(leaf.dtype, np.integer):
                values = random.integers(0, 2, leaf.shape)
            else:
                values = 0.02 * random.standard_normal(leaf.shape)
            return jax.device_put(np.asarray(values, leaf.dtype), leaf.sharding)

        arguments = jax.tree.map(
            filled,
            arguments,
            is_leaf=lambda x: isinstance(x, jax.ShapeDtypeStruct),
        )
        result = wrap(step)(*arguments)
        leaves = [x for x in jax.tree.leaves(result) if isinstance(x, jax.Array)]
        return [np.asarray(leaf, np.float32) for leaf in leaves]

    usual = run(lambda step: step)
    tuned = run(lambda step: lagom_jax.tune(step, mode=mode, cluster=CLUSTER))
    assert len(usual) == len(tuned)
    for one, other in zip(usual, tuned, strict=True):
        np.testing.assert_array_equal(one, other)
