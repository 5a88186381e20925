"""What holds for all tests of regions."""

import pytest

from tests.kept_programs import programs_kept


@pytest.fixture(autouse=True, scope="module")
def programs_are_kept():
    """Most of what these tests would take is compiling small programs for a CPU."""
    with programs_kept():
        yield
