"""Advice on cutting a collective and the matmul next to it, by the cost model."""

from __future__ import annotations

from collections.abc import Mapping

from lagom_jax.cost.timeline import Timeline
from lagom_jax.decompose.form_savings import (
    FormPrices,
    bytes_on_their_way,
    can_be_cut,
    forms_beside,
    forms_of,
    seconds_saved,
)
from lagom_jax.decompose.matmul_beside import (
    MatmulsBeside,
    kernels_by_id,
    matmuls_beside,
)
from lagom_jax.decompose.site_forms import (
    CutPlace,
    best_form,
    likeliest,
    named_by_line,
    places_of,
    saved_at,
)
from lagom_jax.hlo.collective import Collective
from lagom_jax.plan.form import Form
from lagom_jax.plan.rewrite import CollectiveCut
from lagom_jax.program.program import Program

_LEAST = 1e-3
"""A place that is waited for less than this share of the step is not worth a line."""


def advise(
    program: Program, timeline: Timeline, by: FormPrices
) -> tuple[CollectiveCut, ...]:
    """The best form of every place that is waited for, the best first.

    Args:
        program: The step.
        timeline: Its replay.
        by: What collectives and kernels take, also others than it has.
    """
    matmuls = sites_to_cut(program, timeline)
    savings = {
        site: {form: (saved,) for form, saved in forms.items()}
        for site, forms in form_savings(matmuls, timeline, by).items()
    }
    chosen: dict[CutPlace, Form | None] = {}
    saved: dict[CutPlace, float] = {}
    for place in places_of(savings):
        forms = saved_at(place, savings)
        best = best_form(forms, likeliest)
        chosen[place] = best
        saved[place] = 0.0 if best is None else likeliest(forms[best])
    named = named_by_line({p: f if saved[p] > 0.0 else None for p, f in chosen.items()})
    times = timeline.collectives()
    found: list[CollectiveCut] = []
    for place, form in chosen.items():
        if form is None:
            continue
        # Another at the same lines may have no matmul near.
        sites = [site for site in place.sites if matmuls[site].matmuls]
        first = max(sites, key=lambda one: times[one].exposed_seconds)
        found.append(
            CollectiveCut(
                collective=first.name,
                collectives=len(sites),
                kind=first.kind,
                source=first.source,
                matmul=matmuls[first].matmuls[0].name,
                form=form,
                line=named[place].line if place in named else "",
                when=named[place].when if place in named else "",
                saved_seconds=saved[place],
                memory_bytes=max(bytes_on_their_way(form, s) for s in sites),
            )
        )
    return tuple(sorted(found, key=lambda one: -one.saved_seconds))


def sites_to_cut(
    program: Program, timeline: Timeline
) -> dict[Collective, MatmulsBeside]:
    """Collectives with the matmuls next to them, where these can be cut.

    At places that are not waited for, and for which nothing is transposed, there are
    none: what names the others must not lead there.
    """
    kernels = kernels_by_id(program)
    times = timeline.collectives()
    least = _LEAST * timeline.step_seconds
    found: dict[Collective, MatmulsBeside] = {}
    for place in places_of(site for site in times if forms_of(site)):
        beside = {site: matmuls_beside(site, kernels) for site in place.sites}
        seconds = sum(times[site].exposed_seconds for site in place.sites)
        seconds += sum(
            timeline.tasks[one].seconds
            for each in beside.values()
            for one in each.turned
        )
        for site, each in beside.items():
            able = seconds >= least and can_be_cut(site, each)
            found[site] = each if able else MatmulsBeside(())
    return found


def form_savings(
    matmuls: Mapping[Collective, MatmulsBeside], timeline: Timeline, by: FormPrices
) -> dict[Collective, dict[Form, float]]:
    """Seconds of a step less in each form, below 0 where it takes more.

    Args:
        matmuls: Of collectives, those next to each.
        timeline: The step's replay.
        by: What messages, parts and slices take.
    """
    times = timeline.collectives()
    found: dict[Collective, dict[Form, float]] = {}
    for site, beside in matmuls.items():
        runs = times[site].executions
        exposed = times[site].exposed_seconds / runs
        found[site] = {
            form: runs * seconds_saved(form, site, beside, exposed, by)
            for form in forms_beside(site, beside)
        }
    return found
