"""Settings that all models choose, in a decision among programs."""

import pytest

from lagom_jax.planner.decide import Timing
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

    def decided(self, found, *, alone):
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
