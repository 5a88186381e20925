"""The ways in which a step may be rewritten, and what each needs of the compiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from lagom_jax.decompose.site_forms import (
    Savings,
    by_all,
    forms_by_place,
    likeliest,
)
from lagom_jax.options import Idea
from lagom_jax.options.combining import COMBINED
from lagom_jax.plan.form import Form
from lagom_jax.plan.rewrite import (
    LEFT_TO_PARTITIONER,
    Rewrite,
    SiteForm,
    SiteRefusal,
)

if TYPE_CHECKING:
    from lagom_jax.planner.make import Planner
    from lagom_jax.planner.run import Finished


class RewriteWay(NamedTuple):
    """A change of a program that is tried."""

    transformation: str
    """A function of `lagom_jax.decompose`."""
    slices: int
    whole_sums: bool
    """True if gradients of weights stay whole."""
    keeps_order: bool
    """False where sums may be rounded otherwise."""
    forms: tuple[SiteForm, ...] = ()
    """For `with_forms`: the form at each place."""
    title: str = ""
    """Its name among candidates; empty for the call that it is."""
    only: tuple[str, ...] = ()
    """For `sliced`: the lines that are cut; all where there are none."""
    each_alone: bool = False
    """True if each form is compiled alone first, and kept where that is shorter."""
    base: tuple[SiteForm, ...] = ()
    """Forms that places have then where their own is not kept, and beside each."""
    losses: tuple[float, ...] = ()
    """By model, seconds by which its plan was behind: it is tried once more without the
    forms that this is due to."""
    priced: float = 0.0
    """Seconds of a step that it saves by the prices of single collectives, where that
    says whether it is worth a compile at all."""

    @property
    def name(self) -> str:
        """Its name among candidates."""
        return self.title or Rewrite(*self[:3], (), "", 0.0, None, (), self.only).call

    def of(self, step: Callable[..., Any]) -> Any:
        """A step rewritten so; what cannot have its form stays as it is."""
        from lagom_jax.decompose import transformed

        return transformed(step, *self[:3], self.forms, self.only)

    def without(self, left: Sequence[SiteRefusal]) -> RewriteWay:
        """The same without the places that cannot be cut so."""
        gone = {(one.line, one.kind, one.when) for one in left if not one.partly}
        forms = tuple(
            one for one in self.forms if (one.line, one.kind, one.when) not in gone
        )
        only = tuple(line for line in self.only if (line, "", "") not in gone)
        return self._replace(forms=forms, only=only)


class Rewritten(NamedTuple):
    """A step that was rewritten, and what became of its collectives."""

    planner: Planner
    lines: Sequence[str] = ()
    """The lines that are cut."""
    left: tuple[SiteRefusal, ...] = ()
    """Forms that places cannot have."""


WAYS = (
    RewriteWay("sliced", 2, whole_sums=False, keeps_order=False),
    RewriteWay("sliced", 2, whole_sums=True, keeps_order=True),
    RewriteWay("sliced", 4, whole_sums=False, keeps_order=False),
    RewriteWay("half_batch_loops", 2, whole_sums=False, keeps_order=False),
    RewriteWay("rings", 1, whole_sums=True, keeps_order=False),
)
"""Slices of whole steps, along a dimension that their equations treat index by index;
half batches of the loops over layers alone; and rings of messages."""
Ways = tuple[RewriteWay, ...]
_PERMUTES_APART = ("xla_gpu_collective_permute_combine_threshold_bytes",)


def ways_of(finished: Finished | None, *, deterministic: bool = False) -> Ways:
    """All that is tried for a step whose plan is made.

    Chunks have a way of their own, since messages of rings pay by copy engines alone;
    and those that XLA's own order gains by at each place have another, since its order
    of several collectives is not priced.

    Where the partitioner made collectives that a form pays for, the step is also tried
    with slices at these lines alone.

    Args:
        finished: Of that plan: its program says which form suits each place.
        deterministic: Leaves out forms that may change the rounding of sums.
    """
    # What the plan hides by its order and options is not in sight here: a rewritten
    # program gets a plan of its own.
    view = None if finished is None else finished.trials[0].view
    if finished is None or view is None:
        return WAYS
    savings = finished.judge.form_savings(view)

    def allowed(form: Form) -> bool:
        return not deterministic or (form.kind == "chunks" and form.whole_weights)

    def chunks(form: Form) -> bool:
        return allowed(form) and form.by_collectives

    def uncut(form: Form) -> bool:
        return allowed(form) and form.kind == "whole"

    found: dict[tuple[SiteForm, ...], RewriteWay] = {}
    for title, worth, able in (
        ("rows in the order of ranks", likeliest, uncut),
        ("by the likeliest model", likeliest, allowed),
        ("chunks by the likeliest model", likeliest, chunks),
        ("by all models", by_all, allowed),
    ):
        forms = forms_by_place(savings, worth, able)
        if forms:
            found.setdefault(forms, _formed(forms, f"with_forms, {title}"))
    each = forms_by_place(savings, likeliest, chunks, by_pass=True)
    if each:
        alone = _formed(each, "with_forms, what is shorter alone")
        base = forms_by_place(savings, likeliest, uncut, by_pass=True)
        found[each] = alone._replace(each_alone=True, base=base)
    left = [one for forms in found for one in forms if one.kind == LEFT_TO_PARTITIONER]
    lines = tuple(dict.fromkeys(one.line for one in left))
    some = RewriteWay("sliced", 2, deterministic, deterministic, only=lines)
    whole = (
        way._replace(priced=_of_rings(savings))
        if way.transformation == "rings"
        else way
        for way in WAYS
    )
    return (*whole, *([some] if lines else []), *found.values())


def _of_rings(savings: Savings) -> float:
    """Seconds that rings save, which all gathers and scatters have then."""
    ring = Form("ring")
    return sum(saved[ring][0] for saved in savings.values() if ring in saved)


def _formed(forms: tuple[SiteForm, ...], title: str) -> RewriteWay:
    whole = all(one.form.whole_weights for one in forms)
    keeps = whole and all(one.form.kind == "chunks" for one in forms)
    return RewriteWay("with_forms", 1, whole, keeps, forms, title)


def apart(way: RewriteWay, *, deterministic: bool = False) -> Idea:
    """The options without which XLA puts slices of one collective together again.

    Args:
        way: How the step is rewritten.
        deterministic: Leaves out what may change the rounding of sums.

    Example:
        >>> apart(WAYS[-1]).options
        {'xla_gpu_collective_permute_combine_threshold_bytes': 0}
    """
    names = tuple(COMBINED.values())
    if way.transformation == "with_forms":
        names = (*(() if deterministic else names), *_PERMUTES_APART)
    elif way.transformation == "rings":
        names = _PERMUTES_APART
    elif deterministic:
        names = (COMBINED["all-gather"],)
    return Idea(
        "slices stay apart",
        dict.fromkeys(names, 0),
        "XLA combines collectives that are ready together, and two slices of one would "
        "wait for each other again",
        0.0,
    )
