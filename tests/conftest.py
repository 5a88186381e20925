"""What holds for all tests."""

import pytest
from hypothesis import settings

# How long an example takes says more about the machine than about the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def as_wide_as_without_a_terminal(monkeypatch):
    """Those who run tests side by side may tell their workers another width."""
    monkeypatch.delenv("COLUMNS", raising=False)
