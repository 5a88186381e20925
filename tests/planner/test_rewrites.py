"""The form of a program as a candidate: never worse than the plan without it."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from lagom_jax.decompose import DecomposeError
from lagom_jax.plan import (
    Form,
    NoFormError,
    Plan,
    SiteForm,
    SiteRefusal,
    from_json,
    to_json,
)
from lagom_jax.planner import Budget, Request
from lagom_jax.planner.forms_compiled import BEHIND
from lagom_jax.planner.regret import Scored
from lagom_jax.planner.rewrite_ways import WAYS, RewriteWay, Rewritten, apart
from lagom_jax.planner.rewrites import with_rewrites
from lagom_jax.report.plan import plan_to_text
from xla_flags import check_planned

from ..plan.plans import made_by_hand

PLAN = dataclasses.replace(made_by_hand(), rewrite=None)
FINGERPRINT = "ab" * 32
HALF, EXACT, FOUR, LOOPS, RINGS = WAYS


def planned_in(seconds, peak=None):
    """A plan for a rewritten program that takes so long."""
    found = PLAN.evidence
    tuned = dataclasses.replace(found.tuned, step_seconds=seconds)
    evidence = dataclasses.replace(
        found, tuned=tuned, tuned_peak=peak or found.tuned_peak
    )
    holds_for = dataclasses.replace(PLAN.holds_for, fingerprint=FINGERPRINT)
    return dataclasses.replace(PLAN, evidence=evidence, holds_for=holds_for)


@dataclasses.dataclass
class Known:
    """A planner whose plan is known."""

    outcome: Plan
    by_model: tuple[float, ...] | None = None
    as_compiled: tuple[float, ...] = ()
    """By each model, with everything left to NCCL."""

    def __post_init__(self):
        default = self.outcome.evidence.default.step_seconds
        view = SimpleNamespace(default_seconds=default)
        first = SimpleNamespace(scored=Scored(default, self.as_compiled, 0))
        self.finished = SimpleNamespace(
            scored=self.scored, trials=(SimpleNamespace(view=view),), ways=(first,)
        )
        self.asked = None

    @property
    def scored(self):
        seconds = self.outcome.evidence.tuned.step_seconds
        return Scored(seconds, self.by_model or (seconds,), 0)

    def plan(self, request):
        assert request.budget.compiles in (1, Budget().compiles // 2)
        (apart,) = request.begin_with
        assert set(apart.options.values()) == {0}
        self.asked = request
        return self.outcome


FORMS = (
    SiteForm("a.py:1", "all_gather", Form("ring", whole_weights=False)),
    SiteForm("b.py:2", "reduce_scatter", Form("chunks", slices=2)),
)
FORMED = RewriteWay("with_forms", 1, False, False, FORMS, "with_forms, by all models")
AGAIN = FORMED._replace(forms=FORMS[1:], title="with_forms, again")
LEFT = SiteRefusal("a.py:1", "all_gather", FORMS[0].form, "summed over", "a.py:2")


def rewritten(outcomes, more=(), **given):
    """The plan that is chosen where ways of slicing have these outcomes."""

    def planner_of(way):
        outcome = outcomes.get(way, DecomposeError("no ring can be made"))
        if isinstance(outcome, Exception):
            raise outcome
        if isinstance(outcome, Rewritten):
            return outcome
        known = outcome if isinstance(outcome, Known) else Known(outcome)
        return Rewritten(known, ["a.py:1", "a.py:1", "b.py:2"])

    said = []
    written = Known(PLAN)
    request = Request(progress=said.append, **given)
    ways = (*WAYS, FORMED, AGAIN, *more)
    chosen, plan = with_rewrites((written, PLAN), planner_of, request, ways)
    assert said
    assert (chosen is written) == (plan.rewrite is None)
    return plan


def test_the_shortest_is_taken_and_names_its_line():
    plan = rewritten(
        {
            HALF: planned_in(0.08),
            EXACT: planned_in(0.07),
            FOUR: planned_in(0.075),
        }
    )
    assert plan.rewrite.call == "sliced(step, slices=2)"
    assert plan.rewrite.sites == ("a.py:1", "b.py:2")
    assert plan.rewrite.fingerprint == PLAN.holds_for.fingerprint
    assert plan.holds_for.fingerprint == FINGERPRINT
    assert plan.rewrite.step_change == pytest.approx(0.07 - 0.09)
    assert plan.evidence.default == PLAN.evidence.default
    assert plan.evidence.bound_seconds == PLAN.evidence.bound_seconds
    status = {one.name: one.status for one in plan.evidence.candidates}
    assert [name for name, found in status.items() if found == "chosen"] == [
        "sliced(step, slices=2)"
    ]
    assert "step = lagom_jax.decompose.sliced(step, slices=2)" in plan_to_text(plan)


def test_no_rewrite_that_is_longer_or_does_not_fit():
    huge = 2 * PLAN.evidence.memory_limit
    plan = rewritten(
        {
            HALF: planned_in(0.0901),
            EXACT: planned_in(0.05, peak=huge),
            FOUR: DecomposeError("there is nothing to cut"),
        }
    )
    assert plan.rewrite is None
    assert plan.holds_for == PLAN.holds_for
    assert plan.evidence.tuned == PLAN.evidence.tuned
    named = {one.name: one for one in plan.evidence.candidates}
    assert named["sliced(step, slices=2, whole_sums=False)"].status == "slower"
    assert named["sliced(step, slices=2)"].status == "over memory"
    assert named["sliced(step, slices=4, whole_sums=False)"].reason == (
        "there is nothing to cut"
    )


def test_no_rewrite_that_a_model_finds_behind_the_plan_without_it():
    """The shorter one by the likeliest model is the longer one by another."""
    usual = PLAN.evidence.tuned.step_seconds
    plan = rewritten(
        {
            HALF: Known(planned_in(0.07), (usual * 1.001,)),
            EXACT: Known(planned_in(0.08), (usual,)),
        }
    )
    assert plan.rewrite.call == "sliced(step, slices=2)"
    named = {one.name: one for one in plan.evidence.candidates}
    behind = named["sliced(step, slices=2, whole_sums=False)"]
    assert behind.status == "slower"
    assert behind.reason.endswith("by 1 of 1 models")


def test_a_rewritten_step_is_planned_so_as_to_be_behind_by_no_model():
    known = Known(planned_in(0.07))
    rewritten({EXACT: known})
    usual = PLAN.evidence.tuned.step_seconds
    assert known.asked.not_behind.by_model == (usual,)


def test_rings_are_tried_and_named():
    plan = rewritten({HALF: planned_in(0.08), RINGS: planned_in(0.07)})
    assert plan.rewrite.transformation == "rings"
    assert "step = lagom_jax.decompose.rings(step, slices=1)" in plan_to_text(plan)
    named = {one.name: one.status for one in plan.evidence.candidates}
    assert named["rings(step, slices=1)"] == "chosen"
    assert named["sliced(step, slices=2, whole_sums=False)"] == "ok"


def test_forms_of_each_place_are_tried_and_named():
    plan = rewritten({HALF: planned_in(0.08), FORMED: planned_in(0.07)})
    assert plan.rewrite.forms == FORMS
    named = {one.name: one.status for one in plan.evidence.candidates}
    assert named["with_forms, by all models"] == "chosen"
    assert named["sliced(step, slices=2, whole_sums=False)"] == "ok"
    written = {}
    exec(f"step = lambda: 0\n{plan.rewrite.code}", written)
    assert callable(written["step"])
    for line in plan.rewrite.code.splitlines():
        assert line in plan_to_text(plan)


def test_forms_that_places_cannot_have_are_listed_and_left_out():
    known = Rewritten(Known(planned_in(0.07)), ["b.py:2"], (LEFT,))
    plan = rewritten({FORMED: known, AGAIN: planned_in(0.01)})
    assert plan.rewrite.forms == FORMS[1:]
    named = {one.name: one for one in plan.evidence.candidates}
    assert named[FORMED.name].status == "chosen"
    assert named[FORMED.name].left == (LEFT,)
    # What is left of it is another candidate, too, and is planned for once.
    assert named[AGAIN.name].status == "no effect"
    assert from_json(to_json(plan)) == plan
    shown = " ".join(plan_to_text(plan).split())
    assert "all_gather at a.py:1 as ring" in shown


def test_where_no_place_can_have_its_form_the_plan_says_which():
    plan = rewritten({FORMED: NoFormError("there is none", (LEFT,))})
    named = {one.name: one for one in plan.evidence.candidates}
    assert (named[FORMED.name].status, named[FORMED.name].left) == ("failed", (LEFT,))


def test_a_form_that_some_of_a_place_cannot_have_stays():
    partly = dataclasses.replace(LEFT, partly=True)
    known = Rewritten(Known(planned_in(0.07)), ["a.py:1"], (partly,))
    assert rewritten({FORMED: known}).rewrite.forms == FORMS


@pytest.mark.parametrize("way", [*WAYS, FORMED], ids=lambda way: way.name)
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_plan_may_set_what_keeps_slices_apart(way, deterministic):
    for name, value in apart(way, deterministic=deterministic).options.items():
        check_planned(name, value)


def test_half_batches_of_loops_are_tried_and_named():
    plan = rewritten({HALF: planned_in(0.08), LOOPS: planned_in(0.07)})
    assert plan.rewrite.transformation == "half_batch_loops"
    line = "step = lagom_jax.decompose.half_batch_loops(step, slices=2)"
    assert line in plan_to_text(plan)


def test_forms_that_gain_alone_are_tried_together():
    """What a compile of one form by itself finds longer is left out."""
    third = SiteForm("c.py:3", "all_gather", Form("chunks", slices=2))
    forms = (*FORMS, third)
    each = FORMED._replace(forms=forms, title="what is shorter alone", each_alone=True)
    default = PLAN.evidence.default
    found = {
        each._replace(forms=(FORMS[0],)): 0.999 * default.step_seconds,
        each._replace(forms=(FORMS[1],)): 1.001 * default.step_seconds,
        each._replace(forms=(third,)): 0.9 * default.step_seconds,
    }
    outcomes = {
        way: dataclasses.replace(
            PLAN,
            evidence=dataclasses.replace(
                PLAN.evidence, default=dataclasses.replace(default, step_seconds=s)
            ),
        )
        for way, s in found.items()
    }
    both = each._replace(forms=(FORMS[0], third), each_alone=False)
    plan = rewritten({**outcomes, both: planned_in(0.07)}, more=(each,))
    assert plan.rewrite.forms == both.forms
    named = {one.name: one for one in plan.evidence.candidates}
    assert named[each.name].status == "chosen"
    assert plan.evidence.compiles == 2 * PLAN.evidence.compiles + 3
    # Where a form cannot be had at all, it is no gain, either.
    plan = rewritten({}, more=(each,))
    named = {one.name: one for one in plan.evidence.candidates}
    assert (named[each.name].status, plan.rewrite) == ("failed", None)
    assert named[each.name].reason == "no form is shorter by itself"


def mended(whole, without, planned):
    """A plan where forms are behind by a model, and what is compiled to see why.

    Args:
        whole: Seconds by model of the step with all forms, as it is compiled.
        without: The same without each of them.
        planned: The outcome without the second.
    """
    again = FORMED._replace(title=FORMED.title + BEHIND)
    usual = PLAN.evidence.tuned.step_seconds

    def compiled(by_model):
        return Known(PLAN, as_compiled=by_model)

    outcomes = {
        FORMED: Known(planned_in(0.07), (0.06, usual + 0.01)),
        again: compiled(whole),
        again._replace(forms=FORMS[1:]): compiled(without[0]),
        again._replace(forms=FORMS[:1]): dataclasses.replace(
            planned, as_compiled=without[1]
        ),
    }
    written = Known(PLAN, (usual, usual))
    request = Request()

    def planner_of(way):
        if way not in outcomes:
            raise DecomposeError("no ring can be made")
        return Rewritten(outcomes[way])

    _, plan = with_rewrites((written, PLAN), planner_of, request, [FORMED])
    return plan, {one.name: one for one in plan.evidence.candidates}


def test_the_form_by_which_a_plan_is_behind_is_left_out():
    """The step is planned once more with the forms that no model loses by."""
    usual = PLAN.evidence.tuned.step_seconds
    plan, named = mended(
        (0.11, 0.13),
        [(0.115, 0.131), (0.111, 0.11)],
        Known(planned_in(0.075), (usual, usual)),
    )
    assert plan.rewrite.forms == FORMS[:1]
    assert named[FORMED.title].status == "slower"
    assert named[FORMED.title].reason.endswith("by 1 of 2 models")
    assert named[FORMED.title + BEHIND].status == "chosen"
    # Two plans, and three steps that are compiled to see what each form does.
    assert plan.evidence.compiles == 3 * PLAN.evidence.compiles + 3


def test_what_is_behind_without_that_form_is_not_taken_either():
    usual = PLAN.evidence.tuned.step_seconds
    plan, named = mended(
        (0.11, 0.13),
        [(0.115, 0.131), (0.111, 0.11)],
        Known(planned_in(0.075), (usual * 1.001, usual)),
    )
    assert plan.rewrite is None
    assert named[FORMED.title + BEHIND].reason.endswith("by 1 of 2 models")
    plan, named = mended(
        (0.11, 0.13),
        [(0.115, 0.131), (0.111, 0.14)],
        Known(planned_in(0.075), (usual, usual)),
    )
    assert plan.rewrite is None
    reason = "no form by itself is what puts it behind"
    assert named[FORMED.title + BEHIND].reason == reason


def test_slices_of_some_lines_are_named():
    some = WAYS[0]._replace(only=("a.py:1", "b.py:2"))
    assert some.name == (
        'sliced(step, slices=2, whole_sums=False, sites=["a.py:1", "b.py:2"])'
    )
    assert some.without((LEFT,)) == some
    gone = SiteRefusal("a.py:1", "", Form("chunks", slices=2), "no site", "")
    assert some.without((gone,)).only == ("b.py:2",)


def test_a_form_of_one_pass_is_left_out_alone():
    again = dataclasses.replace(FORMS[0], when="backward")
    way = FORMED._replace(forms=(*FORMS, again))
    gone = dataclasses.replace(LEFT, when="backward")
    assert way.without((gone,)).forms == FORMS


def test_sums_stay_as_they_are_where_they_have_to():
    outcomes = {way: planned_in(0.05) for way in WAYS}
    plan = rewritten(outcomes, deterministic=True)
    assert plan.rewrite.whole_sums
    usual, kept = (apart(EXACT, deterministic=one).options for one in (False, True))
    assert len(usual) == 3
    assert set(kept) == {"xla_gpu_all_gather_combine_threshold_bytes"}
