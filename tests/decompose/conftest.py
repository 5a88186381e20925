"""Many small programs for the CPU: compiling them takes longer than running them."""

import jax
import pytest

OPTION = "jax_disable_most_optimizations"


@pytest.fixture(autouse=True)
def _compiled_quickly():
    jax.config.update(OPTION, True)
    yield
    jax.config.update(OPTION, False)
