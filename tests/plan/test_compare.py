"""Two plans side by side."""

import dataclasses

from lagom_jax.plan import (
    CollectiveCut,
    Form,
    Needs,
    Plan,
    PlanControls,
    ProcessVariable,
    Refusal,
    Rewrite,
)
from lagom_jax.plan.compare import _differences, differences

from .plans import ALL_GATHER, THRESHOLD, made_by_hand

PLAN = made_by_hand()


def shown(other, one=PLAN):
    return [str(difference) for difference in differences(one, other)]


def with_levers(change):
    levers = tuple(filter(None, map(change, PLAN.levers)))
    return dataclasses.replace(PLAN, levers=levers)


def test_a_plan_does_not_differ_from_itself():
    assert differences(PLAN, made_by_hand()) == ()


def test_clocks_and_the_order_of_levers_do_not_count():
    evidence = dataclasses.replace(
        PLAN.evidence,
        seconds=99.0,
        candidates=tuple(
            dataclasses.replace(one, compile_seconds=9.0)
            for one in PLAN.evidence.candidates
        ),
    )
    levers = tuple(reversed(PLAN.levers))
    assert not shown(dataclasses.replace(PLAN, evidence=evidence, levers=levers))


def test_a_lever_is_known_by_its_name():
    def change(lever):
        if lever.name == THRESHOLD:
            return dataclasses.replace(lever, value=1 << 27)
        return None if lever.name == ALL_GATHER else lever

    other = with_levers(change)
    assert shown(other) == [
        f"levers.{ALL_GATHER}: true → nothing",
        f"levers.{THRESHOLD}.value: 67108864 → 134217728",
    ]
    # Back again, each the other way round.
    assert {(d.place, d.after, d.before) for d in differences(other, PLAN)} == {
        (d.place, d.before, d.after) for d in differences(PLAN, other)
    }


def test_true_is_not_one():
    assert [str(one) for one in _differences("x", [["a", True]], [["a", 1]])] == [
        "x.a: true → 1"
    ]


def test_costs_and_orders_are_compared_whole():
    order = dataclasses.replace(PLAN.order, sequences={2: (0, 1, 2, 3)})
    other = dataclasses.replace(PLAN, costs=PLAN.costs * 2, order=order)
    costs, ordered = differences(PLAN, other)
    assert (costs.place, ordered.place) == ("costs", "order")
    assert (costs.before[:8], costs.after[:8]) == ("1 lines,", "2 lines,")
    assert ordered.before != ordered.after


def test_what_was_pinned_and_installed_is_compared_by_name():
    holds_for = dataclasses.replace(
        PLAN.holds_for, pinned=(), versions=PLAN.holds_for.versions[1:]
    )
    assert shown(dataclasses.replace(PLAN, holds_for=holds_for)) == [
        "holds_for.versions.jax: 0.10.2 → nothing",
        "holds_for.pinned.xla_gpu_autotune_level: 0 [XLA_FLAGS] → nothing",
    ]


def test_settings_are_known_by_what_they_bind():
    scatter, exchange = PLAN.settings
    other = dataclasses.replace(scatter, setting=scatter.usual)
    assert shown(dataclasses.replace(PLAN, settings=(other,))) == [
        "settings.reduce-scatter.7+reduce-scatter.9.setting: "
        "ring/simple/8/544/1048576 → ring/simple/24/544/2097152",
        f"settings.all-to-all.1: {exchange.setting} → nothing",
    ]


def test_candidates_of_one_name_are_counted():
    first = PLAN.evidence.candidates[0]
    twice = dataclasses.replace(PLAN.evidence, candidates=(first, first))
    thrice = dataclasses.replace(PLAN.evidence, candidates=(first,) * 3)
    one, other = (dataclasses.replace(PLAN, evidence=e) for e in (twice, thrice))
    assert shown(other, one) == ["evidence.candidates.as it is#3: nothing → ok"]


CUT = CollectiveCut("ag", 1, "all-gather", "", "dot", Form("ring"), "", "", 0.01, 64)


def test_every_part_of_a_plan_is_compared():
    other = dataclasses.replace(
        PLAN,
        controls=PlanControls("caps", "nothing", "none"),
        pricing="another",
        notes=("one", "two"),
        variables=(ProcessVariable("NCCL_CTA_POLICY", "2", "why", 0.1),),
        needs=Needs("2.29.0"),
        refusals=(Refusal("copy engines", "one domain", "two of them"),),
        rewrite=Rewrite("sliced", 2, True, ("a.py:1",), "0f" * 32, -0.01, 0),
        cuts=(CUT,),
    )
    found = [difference.place for difference in differences(PLAN, other)]
    places = list(dict.fromkeys(place.partition(".")[0] for place in found))
    assert places == [
        "controls",
        "pricing",
        "notes",
        "variables",
        "needs",
        "refusals",
        "rewrite",
        "cuts",
    ]
    covered = {"holds_for", "levers", "costs", "order", "settings", "evidence", *places}
    assert covered == {field.name for field in dataclasses.fields(Plan)}
