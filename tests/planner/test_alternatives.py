"""What a job may measure beside a plan."""

import pytest

from lagom_jax.planner.alternatives import MOST, chosen
from lagom_jax.planner.run import Finished
from tests.planner.fakes import JUDGE, Compiler, searched


def finished(answers, letters="abc", **more):
    sweep, _ = searched(Compiler(answers, **more), letters)
    decision = sweep.decided()
    return Finished(
        tuple(sweep.trials),
        decision.trial,
        JUDGE,
        decision.ways,
        lambda way: None,
        decision.scored,
    )


ALL = {"a": "faster", "b": "slow", "ab": "slow", "c": "usual", "abc": "slow"}


@pytest.fixture(scope="module")
def found():
    return finished(ALL)


def test_the_step_as_it_is_comes_first_and_then_the_plan(found):
    (_, first), (_, taken), *_ = chosen(found)
    assert first.trial.number == 0
    assert not any(first.view.found.choice)
    assert taken.trial.number == found.taken.number
    assert taken.view.found.choice == found.taken.view.found.choice


def test_no_two_are_the_same_and_each_has_its_name(found):
    named = chosen(found)
    keys = {(way.trial.number, way.view.found.choice) for _, way in named}
    assert len(keys) == len(named) <= MOST + 1
    assert len({name for name, _ in named}) == len(named)


def test_programs_that_the_model_finds_slow_are_among_them(found):
    known = {way.trial.number for way in found.ways}
    listed = {way.trial.number for _, way in chosen(found)}
    slow = {t.number for t in found.trials if t.usable and t.status != "no effect"}
    assert slow - known
    assert listed >= slow - known


def test_all_are_timed_by_the_same_models(found):
    assert {len(way.scored.by_model) for _, way in chosen(found)} == {20}
