"""Modules written in HLO text."""

from lagom_jax.hlo import Module, read_module
from lagom_jax.hlo.text import parse_text


def parse(text: str, *, scheduled: bool = True, header: str = "") -> Module:
    """Reads a module from its text without the first line.

    What tests write down is known to parse, so that no process needs to be risked.
    """
    first = "HloModule test" + (", is_scheduled=true" if scheduled else "") + header
    return read_module(parse_text(f"{first}\n\n{text.strip()}\n", isolated=False))
