"""Plans say what the user has set: here nothing is."""

import jax
import pytest


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch):
    # Others need eight devices, which jax reads from there once, as it starts.
    jax.devices()
    monkeypatch.delenv("XLA_FLAGS", raising=False)
