"""What the verbs share: the screen, and jax without its noise."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from rich.console import Console

from lagom_jax.report.text import WIDTH


def console() -> Console:
    """Where results go: the terminal's width, or a fixed one where there is none."""
    width = None if sys.stdout.isatty() else WIDTH
    return Console(highlight=False, width=width)


@contextlib.contextmanager
def progress(what: str) -> Iterator[None]:
    """Says on the terminal what takes so long; says nothing to files and pipes."""
    screen = Console(stderr=True)
    if screen.is_terminal:
        with screen.status(what):
            yield
    else:
        yield


def import_jax() -> None:
    """Imports jax for tracing, on its CPU backend, without the CUDA libraries' noise.

    A user who chose platforms keeps them.
    """
    from lagom_jax.compile import chatter

    with chatter.withheld():
        import jax

        if not os.environ.get("JAX_PLATFORMS"):
            jax.config.update("jax_platforms", "cpu")
        jax.devices()
