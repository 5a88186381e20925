"""The form of a program as a candidate: never worse than the plan without it."""

from __future__ import annotations

import dataclasses
import itertools
from types import SimpleNamespace

import pytest

from lagom_jax.decompose import DecomposeError
from lagom_jax.options.off_rings import SYMMETRIC
from lagom_jax.plan import (
    Form,
    NoFormError,
    Plan,
    SiteForm,
    SiteRefusal,
    from_json,
    to_json,
)
from lagom_jax.plan.evidence import COSTS
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
DOUBLED = "xla_gpu_enable_while_loop_double_buffering"
WRITTEN = "as it is written"
NUMBERS = itertools.count()
OPTIONS = {
    DOUBLED: True,
    COSTS: b"",
    SYMMETRIC: True,
    "xla_gpu_all_gather_combine_threshold_bytes": 0,
}


def planned_in(seconds, peak=None):
    """A plan for a rewritten program that takes so long."""
    found = PLAN.evidence
    tuned = dataclasses.replace(found.tuned, step_seconds=seconds)
    evidence = dataclasses.replace(
        found,
        tuned=tuned,
        tuned_peak=peak or found.tuned_peak,
        bound_seconds=min(seconds, found.bound_seconds),
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
    fingerprint: str = ""
    """Its program's; by default that of no other."""
    glance: float | None = None
    """Seconds at a look; by default those of the plan."""

    def __post_init__(self):
        default = self.outcome.evidence.default.step_seconds
        self.fingerprint = self.fingerprint or str(next(NUMBERS))
        seconds = self.glance or self.outcome.evidence.tuned.step_seconds
        view = SimpleNamespace(default_seconds=default)
        first = SimpleNamespace(scored=Scored(default, self.as_compiled, 0))
        self.finished = SimpleNamespace(
            scored=self.scored,
            trials=(SimpleNamespace(view=view, seconds=seconds),),
            ways=(first,),
            taken=SimpleNamespace(asked=SimpleNamespace(options=OPTIONS)),
        )
        self.asked = []

    @property
    def scored(self):
        seconds = self.outcome.evidence.tuned.step_seconds
        return Scored(seconds, self.by_model or (seconds,), 0)

    def plan(self, request):
        assert request.budget.compiles in (1, 2, Budget().compiles // 2)
        *_, apart = request.begin_with
        assert set(apart.options.values()) == {0}
        self.asked.append(request)
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
    written = Known(PLAN, fingerprint=WRITTEN)
    request = Request(**{"progress": said.append, **given})
    ways = (*WAYS, FORMED, AGAIN, *more)
    chosen, plan = with_rewrites((written, PLAN), planner_of, request, ways)
    assert said or "progress" in given
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
    look, planned = known.asked
    assert (look.not_behind, planned.not_behind.by_model) == (None, (usual,))


def test_rings_are_tried_and_named():
    plan = rewritten({HALF: planned_in(0.08), RINGS: planned_in(0.07)})
    assert plan.rewrite.transformation == "rings"
    assert "step = lagom_jax.decompose.rings(step, slices=1)" in plan_to_text(plan)
    named = {one.name: one.status for one in plan.evidence.candidates}
    assert named["rings(step, slices=1)"] == "chosen"
    assert named["sliced(step, slices=2, whole_sums=False)"] == "slower"


def test_forms_of_each_place_are_tried_and_named():
    plan = rewritten({HALF: planned_in(0.08), FORMED: planned_in(0.07)})
    assert plan.rewrite.forms == FORMS
    named = {one.name: one.status for one in plan.evidence.candidates}
    assert named["with_forms, by all models"] == "chosen"
    assert named["sliced(step, slices=2, whole_sums=False)"] == "slower"
    written = {}
    exec(f"step = lambda: 0\n{plan.rewrite.code}", written)
    assert callable(written["step"])
    for line in plan.rewrite.code.splitlines():
        assert line in plan_to_text(plan)


def test_forms_that_places_cannot_have_are_listed_and_left_out():
    known = Rewritten(Known(planned_in(0.07), fingerprint="b"), ["b.py:2"], (LEFT,))
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
    # Two plans, three forms by themselves, and those that gain together once.
    assert plan.evidence.compiles == 2 * PLAN.evidence.compiles + 3 + 1
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
    # Two plans beside the first, each after a look, and three steps that are compiled to
    # see what each form does.
    assert plan.evidence.compiles == 3 * PLAN.evidence.compiles + 2 + 3


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


def looked_at(seconds, **given):
    """A step that takes 0.07 s with a plan, and this long at a look."""
    return Known(planned_in(0.07), glance=seconds, **given)


def plans(known):
    """The number of plans for a rewritten step, looks not counted."""
    return sum(one.budget.compiles > 1 for one in known.asked)


def test_the_two_shortest_at_a_look_are_planned_for():
    """Each way takes one compile, under the options of the plan that there is."""
    looks = {HALF: 0.083, EXACT: 0.08, FOUR: 0.081, LOOPS: 0.082}
    known = {way: looked_at(seconds) for way, seconds in looks.items()}
    plan = rewritten(known)
    # The second cannot be shorter than the first turned out to be.
    assert {way: plans(one) for way, one in known.items()} == {
        HALF: 0,
        EXACT: 1,
        FOUR: 0,
        LOOPS: 0,
    }
    like, kept_apart = known[HALF].asked[0].begin_with
    assert like.options == {DOUBLED: True}
    assert kept_apart == apart(HALF)
    assert set(known[HALF].asked[0].levers) == {"options", "order", "settings"}
    named = {one.name: one for one in plan.evidence.candidates}
    assert named[HALF.name].reason == "83.0 ms at a look: others are shorter at a look"
    assert plan.evidence.compiles == 2 * PLAN.evidence.compiles + 4
    known[EXACT] = Known(planned_in(0.0901), glance=0.08)
    rewritten(known)
    assert (plans(known[EXACT]), plans(known[FOUR])) == (1, 1)


def test_no_plan_for_what_cannot_be_the_best():
    far = looked_at(1.21 * PLAN.evidence.tuned.step_seconds)
    bound = Known(planned_in(0.0901), glance=0.08)
    evidence = dataclasses.replace(bound.outcome.evidence, bound_seconds=0.0901)
    bound.outcome = dataclasses.replace(bound.outcome, evidence=evidence)
    plan = rewritten({HALF: far, EXACT: bound})
    assert (plan.rewrite, plans(far), plans(bound)) == (None, 0, 0)


def test_one_rewritten_program_is_planned_for_once():
    same = [looked_at(0.08, fingerprint="same") for _ in range(2)]
    written = looked_at(0.08, fingerprint=WRITTEN)
    plan = rewritten({HALF: same[0], EXACT: same[1], FOUR: written})
    assert (plans(same[0]), same[1].asked, written.asked) == (1, [], [])
    named = {one.name: one for one in plan.evidence.candidates}
    assert named[EXACT.name].status == "no effect"
    assert named[EXACT.name].reason == f"the same as {HALF.name}"


def test_what_prices_rule_out_is_not_compiled():
    exposed = PLAN.evidence.default.exposed_seconds
    far = RINGS._replace(priced=-1.01 * exposed, title="far")
    near = RINGS._replace(priced=-0.99 * exposed, title="near")
    known = {far: looked_at(0.08), near: looked_at(0.08)}
    plan = rewritten(known, more=(far, near))
    assert (known[far].asked, plans(known[near])) == ([], 1)
    named = {one.name: one for one in plan.evidence.candidates}
    assert named["far"].status == "not tried"
    assert named["far"].reason.startswith("priced to take")


def test_all_compiles_together_have_a_limit():
    looks = {way: looked_at(0.08) for way in (*WAYS, FORMED, AGAIN)}
    plan = rewritten(looks, budget=Budget(compiles=1))
    assert (plan.rewrite, sum(map(plans, looks.values()))) == (None, 0)
    assert plan.evidence.compiles == PLAN.evidence.compiles + len(looks)
    each = FORMED._replace(forms=9 * FORMS, title="each", each_alone=True)
    plan = rewritten({}, more=(each,), budget=Budget(compiles=2))
    named = {one.name: one for one in plan.evidence.candidates}
    assert named["each"].reason == "out of compiles: this takes 18, and 16 are left"


def test_it_is_said_which_way_of_how_many():
    said = []
    rewritten({HALF: planned_in(0.08)}, progress=said.append)
    assert f"way 1 of 7: looking at {HALF.name}" in said
    assert f"planning for {HALF.name}" in said


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
