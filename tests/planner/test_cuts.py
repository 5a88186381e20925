"""Collectives that a plan says could be cut: those that its own program exposes."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

from lagom_jax import decompose
from lagom_jax.api import report_scheduled
from lagom_jax.decompose.form_savings import forms_of
from lagom_jax.plan import SiteForm
from lagom_jax.planner import LEVERS, Budget, Planner, Request
from lagom_jax.planner.rewrite_ways import ways_of
from lagom_jax.report.plan import plan_to_text

from ..cost.programs import collective

OPTIONS = {"xla_gpu_enable_triton_gemm": False}


def planner_of(form):
    """A matmul of 1.1 TFLOP after the gather of a GiB."""
    mesh = AbstractMesh((4,), ("t",))
    rows, columns = P("t"), P(None, "t")
    f = jax.shard_map(
        functools.partial(decompose.all_gather_matmul, axis_name="t", form=form),
        mesh=mesh,
        in_specs=(rows, columns),
        out_specs=columns,
    )
    args = [
        jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec))
        for shape, spec in (((131072, 4096), rows), ((4096, 4096), columns))
    ]
    return Planner(jax.jit(f), *args, cluster="h100:1x4", compiler_options=OPTIONS)


@pytest.mark.slow
def test_a_plan_says_what_a_cut_would_save_beyond_it():
    request = Request(levers=("settings",), budget=Budget(compiles=2))
    plan = planner_of(decompose.PLAIN).plan(request)
    (one,) = plan.cuts
    assert one.kind == "all-gather"
    exposed = plan.evidence.tuned.exposed_seconds
    assert 0 < one.saved_seconds < exposed
    assert one.form in forms_of(collective("c", kind=one.kind))
    shown = plan_to_text(plan)
    assert "beyond this plan" in shown
    assert one.form.label in shown
    # Cut already, there is no all-gather left to cut.
    assert planner_of(decompose.Form("ring")).plan(request).cuts == ()


@pytest.mark.slow
def test_the_advice_is_what_a_rewrite_tries():
    """The same form at every place, for the same seconds by the likeliest model."""
    planner = planner_of(decompose.PLAIN)
    # A report has no settings of its own.
    levers = ("options", "transports")
    planner.plan(Request(levers=levers, budget=Budget(compiles=1)))
    first = planner.finished.trials[0]
    report = report_scheduled(first.view.scheduled)
    (said,) = report.cutting
    ((site, forms),) = planner.finished.judge.form_savings(first.view).items()
    assert (said.collective, said.collectives, said.pays) == (site.name, 1, True)
    assert said.saved_seconds == max(saved[0] for saved in forms.values())
    by_likeliest = next(way.forms for way in ways_of(planner.finished) if way.forms)
    assert by_likeliest == (SiteForm(said.line, "all_gather", said.form),)


@pytest.mark.slow
def test_copy_engines_serve_where_transports_may_be_asked_for():
    found = {}
    for levers in (LEVERS, ("options",)):
        planner = planner_of(decompose.PLAIN)
        planner.plan(Request(levers=levers, budget=Budget(compiles=1)))
        view = planner.finished.trials[0].view
        (found[levers],) = planner.finished.judge.form_savings(view).values()
    engines, kernels = found.values()
    for form, saved in engines.items():
        sent = form.kind != "chunks"
        assert sent == (saved[0] > kernels[form][0])
