"""Plans for rewritten programs beside the plan for the program as it is written.

The form of a program decides what can be hidden at all: where a collective stands
between two matmuls that need it, no order and no setting hides it. So forms are
candidates, too: each is compiled once, the best are planned for as any program, within
the same limits of memory, and the shortest plan is taken, that of the program as it is
among them. By no model of
the ensemble it is behind that one.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from lagom_jax.errors import LagomError
from lagom_jax.plan import Plan, PlanCandidate
from lagom_jax.plan.rewrite import NoFormError, Rewrite, SiteRefusal
from lagom_jax.planner.forms_compiled import BEHIND, CompiledForms
from lagom_jax.planner.regret import Scored
from lagom_jax.planner.request import Request
from lagom_jax.planner.rewrite_looks import Look, look_request
from lagom_jax.planner.rewrite_ways import WAYS, RewriteWay, Rewritten, apart
from lagom_jax.units import in_bytes, in_seconds

if TYPE_CHECKING:
    from lagom_jax.planner.make import Planner

_BETTER = 5e-4
"""Less than this share of the step is no gain."""
_LISTED = 6
_PLANNED = 2
"""Ways that are planned for, of those that were looked at."""
_MENDED = 2
"""Ways that are tried once more, without the places that put them behind."""


def with_rewrites(
    as_written: tuple[Planner, Plan],
    planner_of: Callable[[RewriteWay], Rewritten],
    request: Request,
    ways: Sequence[RewriteWay] = WAYS,
) -> tuple[Planner, Plan]:
    """The shortest of a plan and those for the program in slices, and its planner.

    Each way is compiled once and looked at; a plan is made for the best of them alone.

    Args:
        as_written: The planner of the program as it is written, and its plan.
        planner_of: What plans for the program rewritten in one way; raises LagomError
            where there is nothing to cut.
        request: Of the first plan; each plan may take half of its compiles, and all
            together what `Budget.rewrites` says.
        ways: What is tried.
    """
    search = _RewriteSearch(as_written, planner_of, request)
    able = [way for way in ways if way.keeps_order or not request.deterministic]
    search.number = len(able)
    looks = [search.look(way) for way in able if not way.each_alone]
    search.plan_best([one for one in looks if one is not None])
    for way in able:
        if way.each_alone:
            search.plan_alone(way)
    search.mend()
    return search.taken()


class _RewriteSearch:
    """The state of a search: the outcome of each way, and the best plan so far."""

    def __init__(
        self,
        as_written: tuple[Planner, Plan],
        planner_of: Callable[[RewriteWay], Rewritten],
        request: Request,
    ) -> None:
        self.number = 0
        """Ways that are tried."""
        self._begun = time.monotonic()
        self._written, self._plan = as_written
        self._chosen, self._best = as_written
        self._taken = ""
        self._usual = _scored(self._written)
        self._planner_of = planner_of
        # A plan for slices is of no use before it says that it is for them.
        self._request = dataclasses.replace(request, compare_recipes=False, keep=None)
        self._tried: list[PlanCandidate] = []
        self._way = 0
        """Number of the way that is looked at."""
        self._compiles = 0
        """Beyond those of the plan for the step as it is written."""
        self._behind: list[tuple[float, RewriteWay]] = []
        written = "the step as it is written"
        self._known: dict[object, str] = {self._written.fingerprint: written}
        self._looks: list[Look] = []

    def look(self, way: RewriteWay) -> Look | None:
        """Compiles a way once; None where it comes to nothing, which is noted."""
        self._way += 1
        return self._looked_at(way)

    def _looked_at(self, way: RewriteWay) -> Look | None:
        name = way.name
        self._say(f"looking at {name}")
        exposed = self._plan.evidence.default.exposed_seconds
        if way.priced < -exposed:
            why = (
                f"priced to take {in_seconds(-way.priced)} more, and no order hides "
                f"more than {in_seconds(exposed)}"
            )
            return self._noted(_candidate(name, "not tried", why, None, ()))
        if why := self._spent(1):
            return self._noted(_candidate(name, "not tried", why, None, ()))
        left: tuple[SiteRefusal, ...] = ()
        try:
            planner, lines, left = self._planner_of(way)
            able = way.without(left)
            for key in (planner.fingerprint, able._replace(title="", base=())):
                if (same := self._known.setdefault(key, name)) != name:
                    why = f"the same as {same}"
                    return self._noted(_candidate(name, "no effect", why, None, left))
            assert self._written.finished is not None
            self._compiles += 1
            plan = planner.plan(
                look_request(self._request, self._written.finished, able)
            )
        except LagomError as error:
            return self._failed(name, error, left)
        assert planner.finished is not None
        seconds = planner.finished.trials[0].seconds
        look = Look(able, name, planner, tuple(lines), left, plan, seconds)
        self._looks.append(look)
        return look

    def plan_best(self, looks: Sequence[Look]) -> None:
        """Plans for the shortest few that may be shorter than the best so far."""
        for place, look in enumerate(sorted(looks, key=lambda one: one.seconds)):
            if place < _PLANNED:
                self.plan(look)
            else:
                self._passed_over(look, "others are shorter at a look")

    def plan_alone(self, way: RewriteWay) -> None:
        """Plans for a way with those of its forms that gain by themselves.

        Only where that is the shortest of all at a look.
        """
        self._way += 1
        self._say(f"looking at each form of {way.name}")
        forms = self._forms_compiled()
        usual = _as_compiled(self._written)
        try:
            kept = forms.shorter(way, usual)
        except LagomError as error:
            self._failed(way.name, error, ())
            return
        finally:
            self._compiles += forms.compiles
        shortest = min((one.seconds for one in self._looks), default=math.inf)
        look = self._looked_at(kept)
        if look is not None and look.seconds < shortest:
            self.plan(look)
        elif look is not None:
            self._passed_over(look, "another is shorter at a look")

    def plan(self, look: Look) -> None:
        """Plans for a step that was looked at, and takes it if that is the best."""
        best, request = self._best.evidence.tuned.step_seconds, self._request
        if not look.may_beat(best):
            self._passed_over(look, "no plan for it is likely below the best")
            return
        budget = dataclasses.replace(
            request.budget, compiles=max(2, request.budget.compiles // 2)
        )
        if why := self._spent(budget.most):
            self._passed_over(look, why)
            return
        request.progress(f"planning for {look.name}")
        way, name = look.way, look.name
        begin = apart(way, deterministic=request.deterministic)
        asked = dataclasses.replace(
            request,
            budget=budget,
            begin_with=(begin,),
            not_behind=self._usual,
        )
        try:
            other = look.planner.plan(asked)
        except LagomError as error:
            self._failed(name, error, look.left)
            return
        self._compiles += other.evidence.compiles
        status, why = _compared(other, self._plan, self._best)
        losses = _losses(look.planner, self._usual)
        if status == "ok" and (count := sum(loss > 0.0 for loss in losses)):
            if len(way.forms) > 1:
                again = way._replace(title=name + BEHIND, losses=losses)
                self._behind.append((other.evidence.tuned.step_seconds, again))
            of = f"by {count} of {len(losses)} models"
            status, why = "slower", f"behind the plan for the step as it is {of}"
        self._noted(_candidate(name, status, why, other, look.left))
        if status == "ok":
            self._chosen, self._taken = look.planner, name
            rewrite = _rewrite(way, look.lines, other, self._plan)
            self._best = dataclasses.replace(other, rewrite=rewrite)

    def mend(self) -> None:
        """Plans once more for what some model finds behind, less what it loses by."""
        for seconds, way in sorted(self._behind, key=lambda one: one[0])[:_MENDED]:
            if seconds >= self._best.evidence.tuned.step_seconds:
                continue
            self._request.progress(f"looking at each form of {way.name}")
            forms = self._forms_compiled()
            try:
                less = forms.less(way)
            except LagomError as error:
                self._failed(way.name, error, ())
                continue
            finally:
                self._compiles += forms.compiles
            self.number += 1
            look = self.look(less)
            if look is not None:
                self.plan(look)

    def taken(self) -> tuple[Planner, Plan]:
        """The planner of the best, and its plan."""
        plan, best = self._plan, self._best
        tried = [*plan.evidence.candidates, *self._tried]
        if best.rewrite is not None:
            tried = [_demoted(one, self._taken) for one in tried]
        evidence = dataclasses.replace(
            best.evidence,
            default=plan.evidence.default,
            bound_seconds=plan.evidence.bound_seconds,
            bound=plan.evidence.bound,
            default_peak=plan.evidence.default_peak,
            memory_limit=plan.evidence.memory_limit,
            candidates=tuple(tried),
            compiles=plan.evidence.compiles + self._compiles,
            seconds=plan.evidence.seconds + time.monotonic() - self._begun,
        )
        return self._chosen, dataclasses.replace(best, evidence=evidence)

    def _say(self, what: str) -> None:
        self._request.progress(f"way {self._way} of {self.number}: {what}")

    def _spent(self, more: int) -> str:
        """The reason why nothing more may be compiled; empty if something may."""
        budget = self._request.budget
        if time.monotonic() - self._begun > budget.seconds:
            return "out of time"
        return "out of compiles" if self._compiles + more > budget.rewrites else ""

    def _forms_compiled(self) -> CompiledForms:
        room = self._request.budget.rewrites - self._compiles
        return CompiledForms(self._planner_of, self._request, room)

    def _passed_over(self, look: Look, why: str) -> None:
        why = f"{in_seconds(look.seconds)} at a look: {why}"
        self._noted(_candidate(look.name, "slower", why, look.plan, look.left))

    def _failed(
        self, name: str, error: LagomError, left: tuple[SiteRefusal, ...]
    ) -> None:
        left = error.left if isinstance(error, NoFormError) else left
        why = str(error).partition("\n")[0]
        self._noted(_candidate(name, "failed", why, None, left))

    def _noted(self, candidate: PlanCandidate) -> None:
        self._tried.append(candidate)


def _scored(planner: Planner) -> Scored | None:
    return None if planner.finished is None else planner.finished.scored


def _as_compiled(planner: Planner) -> float:
    """Seconds of a step in XLA's own order, with everything left to NCCL."""
    view = None if planner.finished is None else planner.finished.trials[0].view
    assert view is not None
    return view.default_seconds


def _losses(planner: Planner, usual: Scored | None) -> tuple[float, ...]:
    """By each model, seconds that a plan loses to the one without it."""
    own = _scored(planner)
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
