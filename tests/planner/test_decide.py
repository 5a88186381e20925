"""Settings that all models choose, in a decision among programs."""

import dataclasses
from types import SimpleNamespace

import pytest

from lagom_jax.planner.decide import Timing, decide
from lagom_jax.planner.regret import Scored
from lagom_jax.planner.trial import Asked, Trial
from lagom_jax.scheduled import Scheduled
from lagom_jax.settings.doubt import Doubt

from .fakes import H100, MODULES, OPTIONS, Remembering


@pytest.mark.parametrize(
    ("given", "ordered", "alone"),
    [
        ((), False, True),
        (((OPTIONS["a"], True),), False, False),
        ((), True, False),
    ],
)
def test_settings_must_not_drown_where_nothing_else_is_changed(
    monkeypatch, given, ordered, alone
):
    """In a program that is changed they are one part of what is weighed."""
    asked = []

    def decided(self, found, *, alone, not_behind=()):
        asked.append(alone)
        return found

    monkeypatch.setattr(Doubt, "decided", decided)
    judge = Remembering()
    view = judge.look(Scheduled(MODULES["fast"], H100, "step"))
    trial = Trial(Asked(given=given), "ok", "", 1.0, view, ordered=ordered)
    timing = Timing(judge)
    untouched = timing.untouched(trial)
    timing.taken([untouched, timing.way(trial, view)], untouched)
    assert set(asked) == {alone}


@pytest.mark.parametrize(
    ("steady", "taken", "regretted"),
    [(0.95, "busy", (19, 0)), (1.05, "fast", (19,))],
)
def test_what_no_model_finds_behind_other_times_is_taken_if_there_is_such_a_one(
    monkeypatch, steady, taken, regretted
):
    """Another has less regret, and two models find it behind, the last by more."""
    by_model = {
        "usual": (2.0,) * 20,
        "fast": (1.01, *(0.5,) * 18, 1.02),
        "busy": (steady, *(0.8,) * 19),
    }
    timed = {MODULES[kind]: times for kind, times in by_model.items()}

    class Told(Remembering):
        def doubt(self, stage, policy):
            times = timed[stage.program.module]
            return SimpleNamespace(
                step_seconds=lambda choice: times, decided=lambda found, **_: found
            )

    judge = Told()
    asked = []
    monkeypatch.setattr(
        Timing,
        "_with_settings",
        lambda self, way, not_behind=(): asked.append(not_behind) or way,
    )
    trials = [
        Trial(
            Asked(given=((letter, True),)),
            "ok",
            "",
            1.0,
            judge.look(Scheduled(MODULES[kind], H100, "step")),
            number=number,
        )
        for number, (letter, kind) in enumerate(zip("abc", by_model, strict=True))
    ]
    monkeypatch.setattr("lagom_jax.planner.decide._IN_REACH", 10.0)
    limit = Scored(10.0, (1.0,) * 20, 0)
    found = decide(trials, Timing(judge), limit)
    assert found.trial.view.program.module is MODULES[taken]
    assert found.refused.trial.view.program.module is MODULES["fast"]
    assert found.refused.models == (19, 0)
    # What is behind is asked for settings with which it is not.
    assert limit.by_model in asked
    without = decide(trials, Timing(judge))
    assert without.trial.view.program.module is MODULES["fast"]
    # It is taken, and by some models its regret is beyond the bound.
    assert without.refused.trial.view.program.module is MODULES["fast"]
    assert without.refused.models == regretted
    assert without.refused.beside.by_model[1] == pytest.approx(1.015 * 0.5)


def test_of_the_program_that_is_ahead_all_models_are_asked_for_settings(monkeypatch):
    """What one model found for it takes longer by all, and stands behind another."""
    judge = Remembering()
    seen = {
        kind: judge.look(Scheduled(MODULES[kind], H100, "step"))
        for kind in ("usual", "fast", "busy")
    }
    own = seen["fast"].found.choice
    agreed = tuple(1 if one != 1 else 2 for one in own)
    plain = {"usual": 2.0, "fast": 1.0, "busy": 1.01}

    def doubt(stage, policy):
        (kind,) = (k for k, view in seen.items() if view.stage is stage)

        def step_seconds(choice):
            if not any(choice):
                return (plain[kind],) * 20
            return ((0.9 if choice == agreed else 1.5) * plain[kind],) * 20

        def decided(found, **_):
            return dataclasses.replace(found, choice=agreed)

        return SimpleNamespace(step_seconds=step_seconds, decided=decided)

    monkeypatch.setattr(judge, "doubt", doubt)
    timing = Timing(judge)
    trials = [
        Trial(Asked(given=((kind, True),) if n else ()), "ok", "", 1.0, view, number=n)
        for n, (kind, view) in enumerate(seen.items())
    ]
    untouched = timing.untouched(trials[0])
    taken = timing.taken([untouched, *timing.ways(trials, trials[0])], untouched)
    assert any(own)
    assert (taken.trial.number, taken.view.found.choice) == (1, agreed)
