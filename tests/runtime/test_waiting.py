"""Work that goes on when whoever waits for it is called away, at any moment."""

import threading

import pytest

from lagom_jax.errors import InDoubtError
from lagom_jax.runtime.waiting import Interruptible


class AwayError(Exception):
    """What a signal's handler of the user raises."""


def away(*_):
    raise AwayError


def test_away_as_its_thread_begins(monkeypatch):
    start = threading.Thread.start

    def interrupted(thread):
        start(thread)
        raise AwayError

    waiting, done, go = Interruptible(), [], threading.Event()

    def work():
        go.wait(60)
        done.append(1)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(AwayError):
            waiting.error(work)
    assert waiting.under_way
    go.set()
    assert waiting.error(work) is None
    assert done == [1]


def test_away_before_its_thread_begins(monkeypatch):
    waiting, done = Interruptible(), []
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", away)
        with pytest.raises(AwayError):
            waiting.error(lambda: done.append(1))
    assert waiting.error(lambda: done.append(2)) is None
    assert done == [1], "others wait for what was to begin"


def test_doubt_stays():
    waiting, calls = Interruptible(), []

    def work():
        calls.append(1)
        raise InDoubtError("nobody knows")

    for _ in range(2):
        assert str(waiting.error(work)) == "nobody knows"
    assert calls == [1]
