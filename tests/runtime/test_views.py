"""A job that reports writes files to look at, and runs its step as it is."""

import json

import jax
import jax.numpy as jnp
import pytest

import lagom_jax
from lagom_jax.report import Report, report_program
from lagom_jax.runtime.views import write_views

from ..cost.programs import ByName, program, run

CLUSTER = "h100:1x1"


def report() -> Report:
    return report_program(
        program(run("k")),
        lagom_jax.Cluster.parse(CLUSTER),
        ByName({"k": 1e-3}),
        pricing="by hand",
    )


def test_later_shapes_do_not_write_over_the_first(tmp_path):
    first, trace = tmp_path / "r.html", tmp_path / "t.json.gz"
    assert list(write_views(report(), first, None)) == [first]
    assert list(write_views(report(), str(first), trace)) == [
        tmp_path / "r-2.html",
        trace,
    ]
    assert list(write_views(report(), None, trace)) == [tmp_path / "t-2.json.gz"]
    assert list(write_views(report(), None, None)) == []


@pytest.mark.slow
def test_a_job_writes_a_page_and_a_trace(tmp_path):
    page, trace = tmp_path / "r.html", tmp_path / "t.json"

    def step(x):
        return jnp.tanh(x @ x)

    tuned = lagom_jax.tune(
        jax.jit(step),
        mode="report",
        cluster=CLUSTER,
        html=page,
        trace=trace,
        strict=True,
    )
    x = jnp.ones((256, 256), jnp.bfloat16)
    assert (tuned(x) == jax.jit(step)(x)).all()
    assert "matmul" in page.read_text()
    assert json.loads(trace.read_text())["traceEvents"]
