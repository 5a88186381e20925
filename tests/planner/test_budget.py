"""Limits of a planning."""

import os

import pytest

from lagom_jax.errors import LagomError
from lagom_jax.planner import Budget


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"compiles": 0}, "compiles=0: .* at least 1"),
        ({"compiles": -3}, "at least 1"),
        ({"seconds": 0}, "seconds=0: must be above 0"),
        ({"seconds": float("nan")}, "must be above 0"),
        ({"memory_fraction": 0.0}, "memory_fraction=0.0: must be above 0"),
        ({"memory_fraction": 1.01}, "at most 1"),
        ({"memory_fraction": float("nan")}, "at most 1"),
        ({"memory_bytes": 0}, "memory_bytes=0"),
        ({"at_once": -1}, "at_once"),
        ({"evaluations": -1}, "evaluations"),
    ],
)
def test_what_nothing_can_be_done_with_is_refused(wrong, told):
    with pytest.raises(LagomError, match=told):
        Budget(**wrong)


def test_memory_is_a_share_of_the_device_or_said_in_bytes():
    assert Budget(memory_fraction=0.5).memory(81) == 40
    assert Budget(memory_fraction=0.5, memory_bytes=100).memory(81) == 100


@pytest.mark.parametrize(
    ("cores", "at_once", "workers"), [(1, 0, 1), (None, 0, 1), (64, 0, 4), (2, 7, 7)]
)
def test_workers(monkeypatch, cores, at_once, workers):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert Budget(at_once=at_once).workers == workers
