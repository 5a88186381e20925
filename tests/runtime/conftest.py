"""Eight devices where there is one processor, and nothing left of another test."""

import os

import pytest

# Read once, as jax starts; whoever started it before has as many as it has.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

from lagom_jax.runtime import say
from tests.runtime.planned import Plans


@pytest.fixture(autouse=True)
def nothing_was_said():
    say.forget()


@pytest.fixture(autouse=True)
def no_wishes_around(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("LAGOM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture
def plans(monkeypatch):
    return Plans(monkeypatch)
