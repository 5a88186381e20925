"""Common parts of the verbs: the screen, and jax without its noise."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator

from rich.console import Console

from lagom_jax.errors import LagomError
from lagom_jax.report.layout import WIDTH


class OutputError(LagomError):
    """Results cannot be written."""


class _Screen(Console):
    def on_broken_pipe(self) -> None:
        # Rich would end the process itself, with an exit code of its own.
        raise BrokenPipeError


def console() -> Console:
    """The console for results: as wide as the terminal, as `COLUMNS`, or fixed."""
    return _Screen(highlight=False, width=_width())


def _width() -> int | None:
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    return None if sys.stdout.isatty() else WIDTH


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """For the lines that print results: a full disk is no defect of this program.

    Raises:
        OutputError: The results cannot be written.
        BrokenPipeError: Whoever read them has gone away.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(
            f"cannot write to standard output: {error.strerror}; send it elsewhere"
        ) from error


@contextlib.contextmanager
def progress(what: str) -> Iterator[None]:
    """Says on the terminal what takes so long; says nothing to files and pipes."""
    screen = Console(stderr=True)
    if screen.is_terminal:
        with screen.status(what):
            yield
    else:
        yield


@contextlib.contextmanager
def reporting() -> Iterator[Callable[[str], None]]:
    """Like `progress`, for work in several parts: gives what takes the next words."""
    screen = Console(stderr=True)
    if screen.is_terminal:
        with screen.status("") as status:
            yield status.update
    else:
        yield lambda words: None


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
