"""Many small programs for the CPU: compiling them takes longer than running them."""

import jax
import pytest

from tests.kept_programs import programs_kept

OPTION = "jax_disable_most_optimizations"


@pytest.fixture(autouse=True)
def _compiled_quickly():
    jax.config.update(OPTION, True)
    yield
    jax.config.update(OPTION, False)


@pytest.fixture(autouse=True, scope="module")
def _compiled_once():
    with programs_kept():
        yield
