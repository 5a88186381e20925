"""What the verbs share: the screen, and jax without its noise."""

from __future__ import annotations

import contextlib
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

    Whatever `JAX_PLATFORMS` says: a command only traces, and what it compiles for is
    the cluster's business.

    Raises:
        LagomError: XLA refuses `XLA_FLAGS`.
    """
    from lagom_jax.compile import chatter, starting

    starting.check_flags()
    with chatter.withheld():
        import jax

        jax.config.update("jax_platforms", "cpu")
    starting.start_jax()
