"""The count of steps, by which all processes know what each of them runs."""

import types

import pytest

from lagom_jax.errors import InDoubtError
from lagom_jax.runtime.agenda import Agenda, Guide
from lagom_jax.runtime.cache import Cache
from lagom_jax.runtime.coordination import ProcessGroup
from lagom_jax.runtime.programs import Built, StepCall
from lagom_jax.runtime.steps import Steps

CALL = StepCall((), {}, (), {})


class InTurn(Guide):
    """Two programs in turn, with an end that somebody may be called away from."""

    waits = staticmethod(lambda: None)

    def first(self):
        return Agenda.of_turns(0, [0, 1] * 10)

    def timed(self, number, candidate, call, run):
        result = run()
        self.waits()
        return result


class Job:
    """Steps of one process of two; says which program runs, or raises instead."""

    several = True

    def __init__(self):
        self.fails, self.ran = None, []
        choice = types.SimpleNamespace(plan=None, rules=None)
        self.guide = InTurn(choice)
        talk = ProcessGroup(0, (0,)).begin("step", 1.0)
        given = self, self.program("usual"), talk, self.guide, Cache(None)
        self.steps = Steps(*given, strict=False)

    def program(self, name):
        def run():
            if self.fails is not None:
                error, self.fails = self.fails, None
                raise error
            self.ran.append(name)

        return run

    def planned(self, stages, choice):
        return Built(self.program("plan"))

    def run(self, times=1):
        for _ in range(times):
            self.steps.run(None, CALL)


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_a_call_that_is_refused_is_no_step(at):
    job = Job()
    job.run(at)
    job.fails = TypeError("an argument too many")
    with pytest.raises(TypeError):
        job.run()
    job.run(4 - at)
    assert job.ran == ["usual", "plan"] * 2


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, TimeoutError])
def test_who_is_called_away_from_the_end_of_a_step_has_made_it(error):
    job = Job()
    job.run(2)

    def away():
        raise error

    job.guide.waits = away
    with pytest.raises(error):
        job.run()
    del job.guide.waits
    job.run()
    assert job.ran == ["usual", "plan"] * 2


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_step_of_which_nobody_knows_whether_it_has_run_is_the_last(error):
    job = Job()
    job.run(2)
    job.fails = error("in the middle")
    with pytest.raises(error):
        job.run()
    with pytest.raises(InDoubtError, match="whether it has run"):
        job.run()
    assert job.ran == ["usual", "plan"]


def test_alone_a_step_that_failed_stops_nobody():
    job = Job()
    job.several = False
    job.run(2)
    job.fails = RuntimeError("in the middle")
    with pytest.raises(RuntimeError):
        job.run()
    job.run()
    assert len(job.ran) == 3


def test_who_is_called_away_from_building_makes_the_step_later(monkeypatch):
    job, planned = Job(), Job.planned
    job.run()

    def away(self, stages, choice):
        monkeypatch.setattr(Job, "planned", planned)
        raise KeyboardInterrupt

    monkeypatch.setattr(Job, "planned", away)
    with pytest.raises(KeyboardInterrupt):
        job.run()
    job.run()
    assert job.ran == ["usual", "plan"]
