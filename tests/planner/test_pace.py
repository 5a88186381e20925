"""The pace of long work: what is left follows from what was done."""

from lagom_jax.planner.pace import Pace


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def paced(most, seconds=float("inf")):
    clock = Clock()
    return Pace(most, seconds, clock=clock), clock


def test_nothing_is_said_before_anything_is_known():
    assert paced(8)[0].words == ""


def test_the_rest_takes_as_long_as_what_was_done():
    pace, clock = paced(4)
    pace.ended()
    clock.now = 20.0
    assert "at most about 60.0 s left" in pace.words
    pace.ended()
    clock.now = 30.0
    assert "2 of at most 4 done, at most about 30.0 s left" in pace.words


def test_a_limit_of_time_ends_it_earlier():
    pace, clock = paced(100, seconds=60.0)
    pace.ended()
    clock.now = 20.0
    assert "at most about 60.0 s left" in pace.words
    clock.now = 100.0
    assert "at most about 100 s left" in pace.words


def test_nothing_is_said_when_all_is_done():
    pace, clock = paced(1)
    clock.now = 3.0
    pace.ended()
    assert pace.words == ""
