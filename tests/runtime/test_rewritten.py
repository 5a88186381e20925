"""`tune(rewrite=)`: a step in slices, and the step as it is where nothing can be cut."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lagom_jax
from lagom_jax.plan import Form, Rewrite, SiteForm, save
from lagom_jax.runtime import say
from lagom_jax.runtime.options import OptionError
from lagom_jax.runtime.rewritten import way_of
from tests.plan.plans import made_by_hand

X = jnp.arange(32.0).reshape(4, 8) / 8
W = jnp.linspace(-1.0, 1.0, 16).reshape(8, 2)


def step(x, w):
    return jnp.tanh(x @ w)


def matmuls(tuned):
    return tuned.lower(X, W).as_text().count("dot_general")


def plan_with(rewrite):
    return dataclasses.replace(made_by_hand(), rewrite=rewrite)


@pytest.mark.parametrize("slices", [1, 2, 4])
def test_the_step_runs_in_as_many_slices_as_asked(slices):
    tuned = lagom_jax.tune(step, rewrite=slices, mode="off")
    assert matmuls(tuned) == slices
    np.testing.assert_allclose(tuned(X, W), step(X, W), rtol=1e-5)


def test_a_plan_says_into_how_many_and_how(tmp_path):
    rewrite = Rewrite("sliced", 4, False, ("a.py:1",), "0f" * 32, -0.01, 0)
    plan, file = plan_with(rewrite), tmp_path / "plan.json"
    save(plan, file)
    way = way_of(True, plan)
    assert way == way_of(True, file)
    assert way[:3] == ("sliced", 4, False)
    # One that names no transformation changes nothing.
    assert way_of(True, plan_with(None)) is None
    rings = Rewrite("rings", 1, True, ("a.py:1",), "0f" * 32, -0.01, 0)
    assert way_of(True, plan_with(rings))[:3] == ("rings", 1, True)
    forms = (SiteForm("a.py:1", "psum", Form("chunks", slices=2)),)
    formed = Rewrite("with_forms", 1, True, ("a.py:1",), "0f" * 32, 0.0, 0, forms)
    assert way_of(True, plan_with(formed)).forms == forms
    assert matmuls(lagom_jax.tune(step, rewrite=True, plan=file, mode="off")) == 4
    # Slices of one line alone.
    here = f"test_rewritten.py:{step.__code__.co_firstlineno + 1}"
    for line, count in ((here, 4), ("a.py:1", 1)):
        one = plan_with(dataclasses.replace(rewrite, only=(line,)))
        assert way_of(True, one).only == (line,)
        tuned = lagom_jax.tune(step, rewrite=True, plan=one, mode="off")
        assert matmuls(tuned) == count


def test_where_nothing_can_be_cut_the_step_stays_and_says_so(monkeypatch):
    said = []
    monkeypatch.setattr(say, "warn_once", lambda what, **_: said.append(what))
    tuned = lagom_jax.tune(lambda x, w: x[0] + w[0, 0], rewrite=2, mode="off")
    np.testing.assert_allclose(tuned(X, W), X[0] + W[0, 0])
    np.testing.assert_allclose(tuned(X, W), X[0] + W[0, 0])
    assert len(said) == 1
    assert "stays as it is written" in said[0]
    assert "nothing to cut" in said[0]


def test_what_cannot_be_meant_is_refused_with_what_to_give():
    with pytest.raises(OptionError, match="lagom tune --rewrite"):
        lagom_jax.tune(step, rewrite=True)
    with pytest.raises(OptionError, match="slices are 1 or more"):
        lagom_jax.tune(step, rewrite=0)


def test_donation_and_static_arguments_stay():
    @jax.jit
    def plain(x, w):
        return x @ w, w

    donating = jax.jit(
        lambda x, w, times: (x @ w) * times, donate_argnums=0, static_argnums=2
    )
    tuned = lagom_jax.tune(donating, rewrite=2, mode="off")
    with warnings.catch_warnings():
        # No result has the shape of what is donated.
        warnings.simplefilter("ignore")
        np.testing.assert_allclose(tuned(X + 0, W, 3), 3 * (X @ W), rtol=1e-6)
    (first, _), _ = tuned.lower(X, W, 3).args_info
    assert first.donated
    assert matmuls(lagom_jax.tune(plain, rewrite=2, mode="off")) == 2
