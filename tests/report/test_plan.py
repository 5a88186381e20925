"""A plan on a screen."""

import dataclasses

import pytest

from lagom_jax.plan import Evidence, Plan, StepParts
from lagom_jax.report.page_summary import options_alone, short
from lagom_jax.report.plan import plan_to_text

from ..plan.plans import made_by_hand

PLAN = made_by_hand()
NO_STEP = StepParts(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def lines(text):
    return [line.rstrip() for line in text.splitlines()]


def test_the_headline_says_what_is_won():
    shown = lines(plan_to_text(PLAN))
    assert shown[0] == "train_step on h100:1x8 (8 devices)"
    assert (
        "  predicted step 100 ms → 90.0 ms (85.0 ms to 99.0 ms); 1.11 times as fast "
        "(1.06 to 1.13 in 18 of 20 models; slower in 1)" in shown
    )
    assert (
        "  with all communication hidden, as free of charge, the program as it was "
        "takes 76.0 ms (computation alone); 42 % of that gain is reached" in shown
    )
    assert (
        "  memory at the fullest  64.4 GB → 65.5 GB of 85.9 GB that JAX may take"
        in shown
    )


def test_every_part_is_there():
    shown = plan_to_text(PLAN)
    for lever in PLAN.levers:
        assert f" {lever.name} " in shown
        assert f" {lever.name}: {lever.why}" in shown
    for candidate in PLAN.evidence.candidates:
        (row,) = (line for line in lines(shown) if f" {candidate.name}  " in line)
        assert candidate.status in row
        assert candidate.reason in shown
    for setting in PLAN.settings:
        assert setting.why in shown
    assert "fingerprint 0f0f0f0f0f0f, schedule a1a1a1a1a1a1" in shown
    assert "pinned   xla_gpu_autotune_level=0 in XLA_FLAGS" in shown
    assert f"note: {PLAN.notes[0]}" in shown
    assert "All times of steps are predicted. Prices: made by hand" in shown


def test_what_may_round_differently_is_said():
    shown = plan_to_text(PLAN)
    assert (
        "sums may round differently: order, NCCL's settings for reduce-scatter" in shown
    )
    kept = tuple(dataclasses.replace(one, keeps_order=True) for one in PLAN.levers)
    plan = dataclasses.replace(PLAN, levers=kept, settings=PLAN.settings[1:])
    assert "nothing here changes the order of reductions" in plan_to_text(plan)


@pytest.mark.parametrize("width", [80, 100, 120, 140])
def test_a_narrow_screen_cuts_nothing_off(width):
    shown = plan_to_text(PLAN, width=width)
    assert "…" not in shown
    assert all(len(line) <= width for line in shown.splitlines())
    for lever in PLAN.levers:
        assert f" {lever.name} " in shown
    (head,) = (line for line in lines(shown) if line.startswith(" lever"))
    assert ("keeps rounding" in head) is (width >= 120)


def test_words_in_brackets_are_words():
    told = dataclasses.replace(PLAN.evidence.candidates[2], reason="needs [/more]")
    evidence = dataclasses.replace(PLAN.evidence, candidates=(told,))
    assert "needs [/more]" in plan_to_text(dataclasses.replace(PLAN, evidence=evidence))


def test_a_plan_that_tells_nobody_anything():
    plan = Plan(
        dataclasses.replace(PLAN.holds_for, schedule="", versions=(), pinned=()),
        (),
        None,
        None,
        (),
        "caps: none",
        Evidence(NO_STEP, NO_STEP, 0.0, "", None, None, None, (), 0, 0.0),
        "by hand",
    )
    shown = plan_to_text(plan)
    assert "the compiler is told nothing" in shown
    assert "NCCL is told nothing" in shown
    assert "1.00 times as fast" in shown
    assert "could be won" not in shown
    assert "memory at the fullest" not in shown


def test_what_options_alone_bring_is_said_where_it_was_compiled():
    assert options_alone(PLAN) is None
    assert "With XLA&#x27;s options alone" not in short(None, None, PLAN)
    levers = tuple(
        (one.name, one.value)
        for one in PLAN.levers
        if one.accepted and one.value is not None
    )
    tried = PLAN.evidence.candidates
    alone = dataclasses.replace(tried[1], levers=levers, step_seconds=0.0965)
    evidence = dataclasses.replace(PLAN.evidence, candidates=(*tried, alone))
    plan = dataclasses.replace(PLAN, evidence=evidence)
    assert options_alone(plan) == alone
    assert "96.5 ms a step, in XLA&#x27;s own order" in short(None, None, plan)
