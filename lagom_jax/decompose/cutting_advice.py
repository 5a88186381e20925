"""Advice on cutting a collective and the matmul next to it, by the cost model."""

from __future__ import annotations

from collections.abc import Mapping

from lagom_jax.cost.prices import Prices
from lagom_jax.cost.timeline import Timeline
from lagom_jax.decompose.form_savings import FORMS, bytes_on_their_way, seconds_saved
from lagom_jax.decompose.matmul_beside import kernels_by_id, neighbour
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
from lagom_jax.program.program import Kernel, Program

_LEAST = 1e-3
"""A place that is waited for less than this share of the step is not worth a line."""


def advise(
    program: Program, timeline: Timeline, prices: Prices
) -> tuple[CollectiveCut, ...]:
    """The best form of every place that is waited for, the best first.

    Args:
        program: The step.
        timeline: Its replay.
        prices: What collectives and kernels take alone, also others than it has.
    """
    matmuls = sites_to_cut(program, timeline)
    savings = {
        site: {form: (saved,) for form, saved in forms.items()}
        for site, forms in form_savings(matmuls, timeline, prices).items()
    }
    chosen: dict[CutPlace, Form] = {}
    saved: dict[CutPlace, float] = {}
    for place in places_of(savings):
        forms = saved_at(place, savings)
        best = best_form(forms, likeliest)
        assert best is not None
        chosen[place], saved[place] = best, likeliest(forms[best])
    named = named_by_line({p: f if saved[p] > 0.0 else None for p, f in chosen.items()})
    times = timeline.collectives()
    found: list[CollectiveCut] = []
    for place, form in chosen.items():
        first = max(place.sites, key=lambda one: times[one].exposed_seconds)
        found.append(
            CollectiveCut(
                collective=first.name,
                collectives=len(place.sites),
                kind=first.kind,
                source=first.source,
                matmul=matmuls[first].name,
                form=form,
                line=named[place].line if place in named else "",
                saved_seconds=saved[place],
                memory_bytes=max(bytes_on_their_way(form, s) for s in place.sites),
            )
        )
    return tuple(sorted(found, key=lambda one: -one.saved_seconds))


def sites_to_cut(program: Program, timeline: Timeline) -> dict[Collective, Kernel]:
    """Collectives next to a matmul at places that are waited for, with that matmul."""
    kernels = kernels_by_id(program)
    times = timeline.collectives()
    matmuls = {
        site: matmul
        for site in times
        if site.kind in FORMS and site.groups.size > 1
        if (matmul := neighbour(site, kernels)) is not None
    }
    least = _LEAST * timeline.step_seconds
    return {
        site: matmuls[site]
        for place in places_of(matmuls)
        if sum(times[site].exposed_seconds for site in place.sites) >= least
        for site in place.sites
    }


def form_savings(
    matmuls: Mapping[Collective, Kernel], timeline: Timeline, prices: Prices
) -> dict[Collective, dict[Form, float]]:
    """Seconds of a step less in each form, below 0 where it takes more.

    Args:
        matmuls: Of collectives, the one next to each.
        timeline: The step's replay.
        prices: Of messages, parts and slices.
    """
    times = timeline.collectives()
    found: dict[Collective, dict[Form, float]] = {}
    for site, matmul in matmuls.items():
        runs = times[site].executions
        exposed = times[site].exposed_seconds / runs
        found[site] = {
            form: runs * seconds_saved(form, site, matmul, exposed, prices)
            for form in FORMS[site.kind]
        }
    return found
