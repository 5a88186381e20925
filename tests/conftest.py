"""What holds for all tests."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# One store for all tests and their processes; it lasts as long as the checkout.
STORE = Path(__file__).parents[1] / ".pytest_cache" / "compiles"
os.environ.setdefault("LAGOM_STORE", str(STORE))

# How long an example takes says more about the machine than about the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_collection_modifyitems(items):
    """Files with slow tests come first: of two workers none waits for the other."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session")
def kept_programs(tmp_path_factory):
    """What processes need in their environment to compile a program but once.

    Where several train the same model, jax would compile it for the CPU in each. What
    is compiled for GPUs is not kept, nor is a program whose options a plan changes
    taken for the usual one.
    """
    return {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("programs")),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        # They are XLA's own, for GPUs.
        "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
    }


@pytest.fixture(autouse=True)
def as_wide_as_without_a_terminal(monkeypatch):
    """Those who run tests side by side may tell their workers another width."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(autouse=True)
def no_program_of_a_test_stays_imported(tmp_path_factory, monkeypatch):
    """A test's `train.py` would stand before the project's own in the same process."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = dict(sys.modules)
    yield
    folder = str(tmp_path_factory.getbasetemp())
    for name, module in list(sys.modules.items()):
        if module is before.get(name):
            continue
        if (getattr(module, "__file__", None) or "").startswith(folder):
            del sys.modules[name]
            if name in before:
                sys.modules[name] = before[name]
