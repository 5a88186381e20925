"""What is held back on stderr and what is let through."""

import logging
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from lagom_jax.compile import chatter

NOISE = (
    "I0000 00:00:1.7 58 cudart_stub.cc:31] Could not find cuda drivers on your machine"
)


@pytest.fixture(autouse=True)
def without_gpu(monkeypatch):
    monkeypatch.setattr(chatter, "gpu_present", lambda: False)


def test_native_noise_is_dropped_and_the_rest_comes_through(capfd):
    with chatter.withheld():
        os.write(2, f"{NOISE}\nout of disk\n".encode())
    assert capfd.readouterr().err == "out of disk\n"


def test_stderr_is_itself_again_after_an_error(capfd):
    with pytest.raises(ZeroDivisionError), chatter.withheld():
        _ = 1 / 0
    os.write(2, NOISE.encode())
    assert capfd.readouterr().err == NOISE


def test_the_plugins_failure_to_start_is_dropped_only_here(caplog):
    logger = logging.getLogger("jax._src.xla_bridge")
    failure = "Jax plugin configuration error: Exception when calling initialize()"
    with chatter.withheld():
        logger.error(failure)
        logger.error("another matter")
    logger.error(failure)
    assert caplog.messages == ["another matter", failure]


def test_where_a_driver_is_nothing_is_held_back(capfd, monkeypatch):
    monkeypatch.setattr(chatter, "gpu_present", lambda: True)
    with chatter.withheld():
        os.write(2, NOISE.encode())
    assert capfd.readouterr().err == NOISE


def test_threads_leave_stderr_where_it_was(capfd):
    """The descriptor is the process's: what one thread puts aside, all lose."""
    before = os.fstat(2).st_ino
    inside = threading.Event()

    def first():
        with chatter.withheld():
            inside.set()
            time.sleep(0.2)

    def second():
        inside.wait()
        with chatter.withheld():
            time.sleep(0.4)

    with ThreadPoolExecutor() as threads:
        for done in [threads.submit(first), threads.submit(second)]:
            done.result()
    assert os.fstat(2).st_ino == before
