"""Eight devices where there is one processor, and nothing left of another test."""

import importlib
import os
import sys

import pytest
from absl import flags as absl_flags
from absl.testing import flagsaver

# Read once, as jax starts; whoever started it before has as many as it has.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

from lagom_jax.runtime import allowance, decision, say
from lagom_jax.runtime.options import FLAGS_MODULE
from tests.runtime.planned import Plans

# absl lets a module define its flags only once. Others may have imported it already.
FLAGS = importlib.import_module(FLAGS_MODULE)


@pytest.fixture(autouse=True)
def no_flags(monkeypatch):
    monkeypatch.delitem(sys.modules, FLAGS_MODULE, raising=False)


@pytest.fixture
def flags(no_flags, monkeypatch):
    """The flags of a binary, which nobody has parsed yet."""
    monkeypatch.setitem(sys.modules, FLAGS_MODULE, FLAGS)
    absl_flags.FLAGS.unparse_flags()
    with flagsaver.flagsaver():
        yield absl_flags.FLAGS


@pytest.fixture(autouse=True)
def nothing_was_said_or_planned(monkeypatch):
    say._said.clear()
    monkeypatch.setattr(decision, "ALLOWANCE", allowance.Allowance())


@pytest.fixture(autouse=True)
def no_wishes_around(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("LAGOM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture
def plans(monkeypatch):
    return Plans(monkeypatch)
