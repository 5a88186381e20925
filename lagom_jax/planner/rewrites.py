"""Plans for rewritten programs beside the plan for the program as it is written.

The form of a program decides what can be hidden at all: where a collective stands
between two matmuls that need it, no order and no setting hides it. So forms are
candidates, too: each is planned for as any program, within the same limits of memory,
and the shortest plan is taken, that of the program as it is among them. By no model of
the ensemble it is behind that one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from lagom_jax.errors import LagomError
from lagom_jax.plan import Plan, PlanCandidate
from lagom_jax.plan.rewrite import NoFormError, Rewrite, SiteRefusal
from lagom_jax.planner.forms_compiled import BEHIND, CompiledForms
from lagom_jax.planner.regret import Scored
from lagom_jax.planner.request import Request
from lagom_jax.planner.rewrite_ways import WAYS, RewriteWay, Rewritten, apart
from lagom_jax.units import in_bytes

if TYPE_CHECKING:
    from lagom_jax.planner.make import Planner

_BETTER = 5e-4
"""Less than this share of the step is no gain."""
_LISTED = 6
_MENDED = 2
"""Ways that are tried once more, without the places that put them behind."""


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
    behind: list[tuple[float, RewriteWay]] = []
    todo, mended = list(ways), 0
    while todo or (mended < _MENDED and behind):
        if not todo:
            # The shortest that some model finds behind, less what it is behind by.
            behind.sort(key=lambda one: one[0], reverse=True)
            mended += 1
            if (found := behind.pop())[0] < best.evidence.tuned.step_seconds:
                todo = [found[1]]
            continue
        way = todo.pop(0)
        if request.deterministic and not way.keeps_order:
            continue
        name = way.name
        request.progress(f"planning for {name}")
        left: tuple[SiteRefusal, ...] = ()
        try:
            if way.each_alone or way.losses:
                forms = CompiledForms(planner_of, share)
                usually = _as_compiled(as_written[0])
                way = forms.shorter(way, usually) if way.each_alone else forms.less(way)
                compiles += forms.compiles
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
        losses = _losses(planner, usual)
        if status == "ok" and (count := sum(loss > 0.0 for loss in losses)):
            if len(able.forms) > 1:
                again = able._replace(title=name + BEHIND, losses=losses)
                behind.append((other.evidence.tuned.step_seconds, again))
            of = f"by {count} of {len(losses)} models"
            status, why = "slower", f"behind the plan for the step as it is {of}"
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


def _as_compiled(planner: Planner) -> float:
    """Seconds of a step in XLA's own order, with everything left to NCCL."""
    view = None if planner.finished is None else planner.finished.trials[0].view
    assert view is not None
    return view.default_seconds


def _losses(planner: Planner, usual: Scored | None) -> tuple[float, ...]:
    """By each model, seconds that a plan loses to the one without it."""
    own = None if planner.finished is None else planner.finished.scored
    if own is None or usual is None:
        return ()
    pairs = zip(own.by_model, usual.by_model, strict=True)
    return tuple(new - old for new, old in pairs)


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
