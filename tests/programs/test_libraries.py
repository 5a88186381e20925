"""Other people's libraries: a report and a plan at the first try, the same losses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lagom_jax
from lagom_jax.cli import main
from lagom_jax.cluster import Cluster
from lagom_jax.commands.entered import leave_factories
from lagom_jax.commands.subjects import find_subject
from lagom_jax.compile.context import mesh_of
from tests.programs.pages import LIBRARY, LOUD, SMALL, sources, written

CLUSTER = "h100:1x8"

pytestmark = [pytest.mark.nightly, pytest.mark.slow]
QUIET = pytest.mark.filterwarnings("ignore")


def test_every_step_of_the_pages_is_tried_here():
    assert sources().keys() == SMALL.keys()


@pytest.fixture(
    params=[pytest.param(name, marks=[QUIET] if name in LOUD else []) for name in SMALL]
)
def name(request):
    """The name of a step whose library is installed."""
    pytest.importorskip(LIBRARY.get(request.param, request.param))
    return request.param


@pytest.fixture
def subject(name, tmp_path):
    """The step of a page, small, as `lagom report` takes it."""
    return written(name, tmp_path)


def test_a_report_at_the_first_try(name, subject, capsys):
    assert main(["report", subject, "--cluster", CLUSTER]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"make_step on {CLUSTER} (8 devices)")
    assert "CAUTION" not in shown
    # MaxText has the step, and is a package that was installed.
    assert f"{name}_step.py:" in shown or name == "maxtext"
    assert "<unnamed" not in shown


def test_a_plan_at_the_first_try(subject, tmp_path):
    plan = tmp_path / "plan.json"
    words = ["tune", subject, "--cluster", CLUSTER, "--compiles", "3"]
    assert main([*words, "--output", str(plan)]) == 0
    assert plan.exists()


def filled(leaf, random):
    """Numbers in the place of a shape; all else as it is."""
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        keys = np.zeros(leaf.shape + jax.random.key_data(jax.random.key(0)).shape)
        keys = jax.random.wrap_key_data(keys.astype(np.uint32))
        return jax.device_put(keys, leaf.sharding)
    if np.issubdtype(leaf.dtype, np.integer):
        values = random.integers(0, 2, leaf.shape)
    elif np.issubdtype(leaf.dtype, np.bool_):
        values = np.ones(leaf.shape)
    else:
        values = 0.02 * random.standard_normal(leaf.shape)
    return jax.device_put(np.asarray(values, leaf.dtype), leaf.sharding)


@pytest.mark.parametrize("mode", ["off", "report", "tune"])
def test_losses_are_equal_in_all_digits(subject, mode):
    """A step with numbers in the place of shapes, wrapped and not."""

    def run(wrap):
        random = np.random.default_rng(0)
        try:
            found = find_subject(subject, Cluster.parse(CLUSTER), {})
            arguments, named = jax.tree.map(
                lambda leaf: filled(leaf, random),
                (found.arguments, dict(found.named_arguments)),
                is_leaf=lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct),
            )
            # As a job does it, for what is written with bare partition specs.
            with jax.set_mesh(mesh_of(found.arguments)):
                result = wrap(found.step)(*arguments, **named)
        finally:
            leave_factories()
        leaves = [x for x in jax.tree.leaves(result) if isinstance(x, jax.Array)]
        leaves = [x for x in leaves if jnp.issubdtype(x.dtype, jnp.number)]
        return [np.asarray(leaf, np.float32) for leaf in leaves]

    usual = run(lambda step: step)
    tuned = run(lambda step: lagom_jax.tune(step, mode=mode, cluster=CLUSTER))
    assert usual
    assert len(usual) == len(tuned)
    for one, other in zip(usual, tuned, strict=True):
        np.testing.assert_array_equal(one, other)
