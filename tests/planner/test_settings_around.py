"""Settings one step away from those of a candidate."""

import pytest

from lagom_jax.planner.settings_around import settings_around
from tests.planner.test_alternatives import finished


@pytest.fixture(scope="module")
def found():
    return finished({"a": "faster"}, "a")


@pytest.mark.parametrize("number", [0, -1])
def test_each_changes_one_group_of_the_same_program(found, number):
    way = found.ways[number]
    steps = settings_around(found, way, start=False)
    assert steps
    choices = [step.way.view.found.choice for step in steps]
    assert len(set(choices)) == len(choices)
    for step, choice in zip(steps, choices, strict=True):
        own = way.view.found.choice
        assert sum(a != b for a, b in zip(choice, own, strict=True)) == 1
        assert step.way.trial is way.trial
        assert len(step.way.scored.by_model) == 20


def test_what_it_buys_and_costs_is_what_the_replay_says(found):
    way = found.ways[0]
    stage = way.view.stage
    before = stage.score(way.view.found.choice)
    for step in settings_around(found, way, start=False):
        after = stage.score(step.way.view.found.choice)
        own = sum(before.own_seconds.values()) - sum(after.own_seconds.values())
        assert step.saved_seconds == pytest.approx(own)
        totals = after.totals.compute_seconds - before.totals.compute_seconds
        assert step.added_seconds == pytest.approx(totals)


def test_the_start_of_the_rounds_is_small(found):
    way = found.ways[-1]
    first, *others = settings_around(found, way, start=True)
    assert first.name.endswith("all small")
    assert others
    # Nothing takes less of the kernels beside.
    assert all(first.added_seconds <= one.added_seconds + 1e-9 for one in others)
