"""What all tests share."""

import pytest

from lagom_jax.hlo import read_module
from lagom_jax.hlo.text import parse_text


@pytest.fixture
def parse():
    """Reads a module written in HLO text, without its first line."""

    def read(text, *, scheduled=True, header=""):
        first = "HloModule test" + (", is_scheduled=true" if scheduled else "") + header
        return read_module(parse_text(f"{first}\n\n{text.strip()}\n"))

    return read
