"""What is tried next: what a step still waits for, and what its links have to carry."""

import dataclasses

import pytest

from lagom_jax.planner.next_ideas import neighbours
from lagom_jax.planner.trial import Asked, Trial
from lagom_jax.scheduled import Scheduled

from .fakes import H100, JUDGE, MODULES, idea


def trial(kind):
    scheduled = Scheduled(MODULES[kind], H100, "step", peak_memory_bytes=1)
    return Trial(Asked(), "ok", "", 0.0, JUDGE.look(scheduled))


WAITS_LESS = idea("a", 1.0)
CARRIES_LESS = dataclasses.replace(idea("b", 0.5), carries_less=True)


@pytest.mark.parametrize(
    ("kind", "first"),
    [("huge", CARRIES_LESS), ("busy", WAITS_LESS)],
    ids=["a link holds the step up", "kernels do"],
)
def test_where_a_link_holds_the_step_up_what_it_carries_comes_first(kind, first):
    """Waiting less for a gather cannot win the time that the gather itself takes."""
    best = trial(kind)
    asked = neighbours(best, best, [WAITS_LESS, CARRIES_LESS], ())
    assert asked[0].ideas == (first,)
    assert len(asked) == 2


def test_what_a_link_holds_up_is_no_reason_to_leave_an_idea_out():
    best = trial("huge")
    assert [one.ideas for one in neighbours(best, best, [WAITS_LESS], ())] == [
        (WAITS_LESS,)
    ]


def test_of_those_that_could_give_as_much_the_more_promising_comes_first():
    """Two that only hide have the same room beside a link that is always busy."""
    best, more = trial("huge"), idea("c", 2.0)
    asked = neighbours(best, best, [WAITS_LESS, more], ())
    assert [one.ideas for one in asked] == [(more,), (WAITS_LESS,)]
