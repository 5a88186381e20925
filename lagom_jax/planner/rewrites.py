"""Plans for rewritten programs beside the plan for the program as it is written.

The form of a program decides what can be hidden at all: where a collective stands
between two matmuls that need it, no order and no setting hides it. So forms are
candidates, too: each is planned for as any program, within the same limits of memory,
and the shortest plan is taken, that of the program as it is among them. By no model of
the ensemble it is behind that one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from lagom_jax.decompose.site_forms import by_all, forms_by_place, likeliest
from lagom_jax.errors import LagomError
from lagom_jax.options import Idea
from lagom_jax.options.combining import COMBINED
from lagom_jax.plan import Plan, PlanCandidate
from lagom_jax.plan.form import Form
from lagom_jax.plan.rewrite import (
    LEFT_TO_PARTITIONER,
    NoFormError,
    Rewrite,
    SiteForm,
    SiteRefusal,
)
from lagom_jax.planner.regret import Scored, nowhere_behind
from lagom_jax.planner.request import Request
from lagom_jax.planner.shorter_alone import shorter_alone
from lagom_jax.units import in_bytes

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
_BETTER = 5e-4
"""Less than this share of the step is no gain."""
_LISTED = 6


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
    return (*WAYS, *([some] if lines else []), *found.values())


def _formed(forms: tuple[SiteForm, ...], title: str) -> RewriteWay:
    whole = all(one.form.whole_weights for one in forms)
    keeps = whole and all(one.form.kind == "chunks" for one in forms)
    return RewriteWay("with_forms", 1, whole, keeps, forms, title)


def with_rewrites(
    as_written: tuple[Planner, Plan],
    planner_of: Callable[[RewriteWay], Rewritten],
    request: Request,
    ways: Sequence[RewriteWay] = WAYS,
) -> tuple[Planner, Plan]:
    """The shortest of a plan and those for the program in slices, and its planner.

    Args:
        as_written: The planner of the program as it is written, and its plan.
        planner_of: What plans for the program rewritten in one way; raises LagomError
            where there is nothing to cut.
        request: Of the first plan; each way may take half of its compiles.
        ways: What is tried.
    """
    chosen, plan = as_written
    usual = None if chosen.finished is None else chosen.finished.scored
    best, tried = plan, list(plan.evidence.candidates)
    compiles, seconds = plan.evidence.compiles, plan.evidence.seconds
    budget = request.budget
    share = dataclasses.replace(
        request,
        budget=dataclasses.replace(budget, compiles=max(2, budget.compiles // 2)),
        compare_recipes=False,
        # A plan for slices is of no use before it says that it is for them.
        keep=None,
        not_behind=usual,
    )
    taken = ""
    done: dict[RewriteWay, str] = {}
    for way in ways:
        if request.deterministic and not way.keeps_order:
            continue
        name = way.name
        request.progress(f"planning for {name}")
        left: tuple[SiteRefusal, ...] = ()
        try:
            if way.each_alone:
                way, used = _shorter_alone(way, planner_of, share, as_written[0])
                compiles += used
            planner, lines, left = planner_of(way)
            able = way.without(left)
            before = done.setdefault(able._replace(title="", base=()), name)
            if before != name:
                why = f"the same as {before}"
                tried.append(_candidate(name, "no effect", why, None, left))
                continue
            begin = apart(able, deterministic=request.deterministic)
            other = planner.plan(dataclasses.replace(share, begin_with=(begin,)))
        except LagomError as error:
            left = error.left if isinstance(error, NoFormError) else left
            why = str(error).partition("\n")[0]
            tried.append(_candidate(name, "failed", why, None, left))
            continue
        compiles += other.evidence.compiles
        seconds += other.evidence.seconds
        status, why = _compared(other, plan, best)
        if status == "ok" and (behind := _behind(planner, usual)):
            status, why = "slower", behind
        tried.append(_candidate(name, status, why, other, left))
        if status == "ok":
            chosen, taken = planner, name
            rewrite = _rewrite(able, lines, other, plan)
            best = dataclasses.replace(other, rewrite=rewrite)
    if best.rewrite is not None:
        tried = [_demoted(one, taken) for one in tried]
    evidence = dataclasses.replace(
        best.evidence,
        default=plan.evidence.default,
        bound_seconds=plan.evidence.bound_seconds,
        bound=plan.evidence.bound,
        default_peak=plan.evidence.default_peak,
        memory_limit=plan.evidence.memory_limit,
        candidates=tuple(tried),
        compiles=compiles,
        seconds=seconds,
    )
    return chosen, dataclasses.replace(best, evidence=evidence)


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


def _shorter_alone(
    way: RewriteWay,
    planner_of: Callable[[RewriteWay], Rewritten],
    request: Request,
    as_written: Planner,
) -> tuple[RewriteWay, int]:
    """A way with those of its forms that gain by themselves, and compiles for that.

    Raises:
        NoFormError: None does.
    """
    finished = as_written.finished
    assert finished is not None
    usual = finished.trials[0].view
    assert usual is not None
    budget = dataclasses.replace(request.budget, compiles=1)
    compiles = 0

    def seconds_of(forms: tuple[SiteForm, ...]) -> float:
        nonlocal compiles
        compiles += 1
        one = way._replace(forms=forms, base=())
        begin = apart(one, deterministic=request.deterministic)
        once = dataclasses.replace(
            request, levers=("options",), budget=budget, begin_with=(begin,)
        )
        try:
            planner = planner_of(one).planner
            planner.plan(once)
        except LagomError:
            return math.inf
        view = None if planner.finished is None else planner.finished.trials[0].view
        return math.inf if view is None else view.default_seconds

    kept = shorter_alone(way.forms, way.base, usual.default_seconds, seconds_of)
    if not kept:
        raise NoFormError("no form is shorter by itself", ())
    return way._replace(forms=kept, each_alone=False, base=()), compiles


def _behind(planner: Planner, usual: Scored | None) -> str:
    """Words about the models by which a plan loses to the one without it."""
    own = None if planner.finished is None else planner.finished.scored
    if own is None or usual is None or nowhere_behind(own, usual):
        return ""
    pairs = [*zip(own.by_model, usual.by_model, strict=True)]
    count = sum(new > old for new, old in pairs)
    return f"behind the plan for the step as it is by {count} of {len(pairs)} models"


def _compared(other: Plan, plan: Plan, best: Plan) -> tuple[Any, str]:
    """The status of a plan for a rewritten program, and why."""
    peak, limit = other.evidence.tuned_peak, plan.evidence.memory_limit
    if peak is not None and limit is not None and peak > limit:
        return "over memory", f"takes {in_bytes(peak)}, and may {in_bytes(limit)}"
    before = best.evidence.tuned.step_seconds
    change = other.evidence.tuned.step_seconds / before - 1
    if change > -_BETTER:
        return "slower", f"{change:+.1%} beside the best so far, each with its own plan"
    return "ok", ""


def _rewrite(way: RewriteWay, lines: Sequence[str], other: Plan, plan: Plan) -> Rewrite:
    new, old = other.evidence, plan.evidence
    peak = None
    if new.tuned_peak is not None and old.tuned_peak is not None:
        peak = new.tuned_peak - old.tuned_peak
    return Rewrite(
        *way[:3],
        tuple(dict.fromkeys(lines))[:_LISTED],
        plan.holds_for.fingerprint,
        new.tuned.step_seconds - old.tuned.step_seconds,
        peak,
        way.forms,
        way.only,
    )


def _candidate(
    name: str,
    status: Any,
    reason: str,
    made: Plan | None,
    left: tuple[SiteRefusal, ...],
) -> PlanCandidate:
    found = None if made is None else made.evidence
    return PlanCandidate(
        name=name,
        levers=tuple((lever.name, lever.value) for lever in made.levers)
        if made is not None
        else (),
        status=status,
        reason=reason,
        step_seconds=None if found is None else found.default.step_seconds,
        tuned_seconds=None if found is None else found.tuned.step_seconds,
        peak_bytes=None if found is None else found.tuned_peak,
        compile_seconds=0.0 if found is None else found.seconds,
        left=left,
    )


def _demoted(one: PlanCandidate, chosen: str) -> PlanCandidate:
    """A candidate's status once a rewritten program is the one that was chosen."""
    if one.name == chosen:
        return dataclasses.replace(one, status="chosen")
    if one.status == "chosen":
        return dataclasses.replace(one, status="ok")
    return one
