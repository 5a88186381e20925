"""Kernels whose time a user states, in a job."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lagom_jax
from lagom_jax.hlo.stated_kernels import StatedKernel
from lagom_jax.runtime import variant

pytestmark = pytest.mark.slow


@jax.jit
def step(x):
    return jax.pure_callback(np.tanh, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


@pytest.mark.parametrize("kernels", [(), (StatedKernel("*callback*", seconds=0.25),)])
def test_a_job_reports_with_the_stated_time(monkeypatch, kernels):
    told = []
    monkeypatch.setattr(variant, "tell", lambda report, *_: told.append(report))
    tuned = lagom_jax.tune(step, mode="report", cluster="h100:1x1", kernels=kernels)
    x = jnp.linspace(-1.0, 1.0, 8, dtype=jnp.float32)
    np.testing.assert_array_equal(tuned(x), np.tanh(x))
    assert (told[0].step_seconds >= 0.25) == bool(kernels)
