"""Common parts of the verbs: the screen, and jax without its noise."""

from __future__ import annotations

import contextlib
import contextvars
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from lagom_jax.errors import LagomError
from lagom_jax.report.layout import WIDTH
from lagom_jax.units import printable

# A log gets a line after so long, and again after as long.
_EVERY_S = 20.0


class OutputError(LagomError):
    """Results cannot be written."""


class _Screen(Console):
    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        # Names in programs and files are anybody's, and none is to move the cursor.
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield segment._replace(text=printable(segment.text))

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


_RESULTS: contextvars.ContextVar[TextIO | None] = contextvars.ContextVar(
    "standard output, where it is kept for results", default=None
)


@contextlib.contextmanager
def stdout_for_results() -> Iterator[None]:
    """Keeps standard output for results: what a user's own code prints goes to stderr.

    A step is imported, called and traced in this process, and one line of its own would
    make a JSON document unreadable. `writing` opens standard output again.
    """
    token = _RESULTS.set(sys.stdout)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _RESULTS.reset(token)


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """For the lines that print results: a full disk is no defect of this program.

    Raises:
        OutputError: The results cannot be written.
        BrokenPipeError: Whoever read them has gone away.
    """
    try:
        with contextlib.redirect_stdout(_RESULTS.get() or sys.stdout):
            yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(
            f"cannot write to standard output: {error.strerror}; send it elsewhere"
        ) from error


@contextlib.contextmanager
def progress(what: str) -> Iterator[None]:
    """Says what takes so long: on a terminal at once, elsewhere in a line now and then.

    Args:
        what: What is done.
    """
    with reporting() as say:
        say(what)
        yield


@contextlib.contextmanager
def reporting() -> Iterator[Callable[[str], None]]:
    """Like `progress`, for work in several parts: gives what takes the next words."""
    screen = Console(stderr=True)
    if screen.is_terminal:
        with screen.status("") as status:
            yield status.update
        return
    lines = _Lines()
    try:
        yield lines.say
    finally:
        lines.end()


class _Lines:
    """Lines on stderr for whoever reads a log, none for what is done soon."""

    def __init__(self) -> None:
        self._words = ""
        self._begun = time.monotonic()
        self._ended = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def say(self, words: str) -> None:
        self._words = words

    def end(self) -> None:
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(_EVERY_S):
            seconds = time.monotonic() - self._begun
            # Whoever closed stderr does not want to know.
            with contextlib.suppress(OSError, ValueError):
                print(f"lagom: {seconds:.0f} s: {self._words}", file=sys.stderr)
                sys.stderr.flush()


def import_jax(devices: int | None = None) -> None:
    """Imports jax for tracing, on its CPU backend, without the CUDA libraries' noise.

    Whatever `JAX_PLATFORMS` says: a command only traces, and what it compiles for is
    the cluster's business. With a number of devices jax has so many CPU devices unless
    the environment has another number, and is not started, so that a program may say
    otherwise.

    Args:
        devices: The number of CPU devices; by default jax is started as it is.

    Raises:
        LagomError: XLA refuses `XLA_FLAGS`.
    """
    from lagom_jax.compile import chatter, starting

    starting.check_flags()
    with chatter.withheld():
        import jax

        jax.config.update("jax_platforms", "cpu")
        if devices is not None:
            from lagom_jax.compile import _jax_internals

            # A program that has started jax, and calls the command, has its devices.
            started = _jax_internals.backends_started()
            if not (started or _number_is_stated()):
                jax.config.update("jax_num_cpu_devices", devices)
            _jax_internals.load_plugins()
            return
    starting.start_jax()


def _number_is_stated() -> bool:
    return "JAX_NUM_CPU_DEVICES" in os.environ or (
        "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    )
