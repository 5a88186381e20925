"""What holds for all tests."""

import contextlib
import gc
import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings
from jaxlib import xla_client

from lagom_jax.compile import Compiler, Store, child, deviceless, worker
from lagom_jax.hlo import parser_process, text
from lagom_jax.processes import python

from .forked import COLLECTED, QuickStarts
from .kept_programs import COMPILED_SOONER

# Playwright runs once in a process: tests of all rooms share one browser.
from .report.browsers import chromium as chromium

# Read once, as jax starts.
_FLAGS = os.environ.get("XLA_FLAGS")
_DEVICES = "--xla_force_host_platform_device_count=8"
os.environ["XLA_FLAGS"] = " ".join(filter(None, [_DEVICES, COMPILED_SOONER, _FLAGS]))
xla_client.CompileOptions()
# Processes that tests start are told what they were told before.
del os.environ["XLA_FLAGS"]
if _FLAGS is not None:
    os.environ["XLA_FLAGS"] = _FLAGS

# One store for all tests and their processes; it lasts as long as the checkout.
_USUAL = Path(__file__).parents[1] / ".pytest_cache" / "compiles"
STORE = os.environ.setdefault("LAGOM_STORE", str(_USUAL))

COMPILING = QuickStarts(
    child.command()[:-1], Path(worker.__file__), "lagom_jax.compile.worker"
)
PARSER = Path(parser_process.__file__)
PARSING = QuickStarts(python(str(PARSER)), PARSER, "jaxlib._hlo")

# How long an example takes says more about the machine than about the code.
# A change is judged by the same examples each time; the night looks for new ones.
settings.register_profile("ci", deadline=None, derandomize=True, max_examples=40)
settings.register_profile("nightly", deadline=None, max_examples=2000)


def pytest_addoption(parser):
    """Declares the depth of a run."""
    parser.addoption(
        "--nightly", action="store_true", help="everything, and at full depth"
    )


def pytest_configure(config):
    """Chooses how many examples are tried."""
    settings.load_profile("nightly" if config.getoption("--nightly") else "ci")


def pytest_collection_modifyitems(config, items):
    """Leaves out what is for the night.

    Files with slow tests come first: of two workers none waits for the other.
    """
    if not config.getoption("--nightly"):
        late = [item for item in items if item.get_closest_marker("nightly")]
        if late:
            config.hook.pytest_deselected(items=late)
            items[:] = [item for item in items if item not in late]
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish():
    """Leaves all that was collected and imported out of searches for garbage.

    It lasts as long as the process, and is most of what each search would look at.
    """
    gc.freeze()
    gc.set_threshold(*COLLECTED)


@pytest.fixture(autouse=True, scope="module")
def what_a_file_leaves_is_no_garbage():
    """So it is with what a file keeps for others, which is read and compiled once."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def shared_compiler():
    """Processes that compile for all tests of a worker."""
    with Compiler() as compiler:
        yield compiler


@pytest.fixture(autouse=True)
def tests_share_processes_that_compile(request, monkeypatch):
    """A step that is compiled by itself would start a process each time."""

    def compiler():
        if Store.usual() != Store(Path(STORE)):
            return Compiler()
        return contextlib.nullcontext(request.getfixturevalue("shared_compiler"))

    monkeypatch.setattr(deviceless, "Compiler", compiler)


@pytest.fixture(autouse=True)
def processes_of_tests_start_quickly(monkeypatch):
    """Those that compile and that parse; commands and pages start them as users do."""
    monkeypatch.setattr(child, "subprocess", COMPILING)
    monkeypatch.setattr(text, "subprocess", PARSING)


@pytest.fixture(autouse=True)
def as_wide_as_without_a_terminal(monkeypatch):
    """Those who run tests side by side may tell their workers another width."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(autouse=True)
def no_program_of_a_test_stays_imported(tmp_path_factory, monkeypatch):
    """A test's `train.py` would stand before the project's own in the same process."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = sys.modules.copy()
    yield
    # Most tests import nothing, which is seen at a glance.
    if sys.modules == before:
        return
    folder = str(tmp_path_factory.getbasetemp())
    for name, module in list(sys.modules.items()):
        if module is before.get(name):
            continue
        if (getattr(module, "__file__", None) or "").startswith(folder):
            del sys.modules[name]
            if name in before:
                sys.modules[name] = before[name]
