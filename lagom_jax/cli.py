"""The command line: `lagom VERB ...`.

Each verb is a module of `lagom_jax.commands` with an `add` that declares it and a
function that runs it. Exit codes: 0 done, 1 an exception, plans that differ or do not
hold, a step that exposes too much or became too slow, or an NCCL that will not load the
plugin, 2 something the user can put right, 3 the GPU compiler is not installed as it
must be, 4 the compiler refused, 5 some rows of a table could not be predicted, 130
interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from lagom_jax.commands import (
    assert_overlap,
    calibrate,
    clusters,
    diff,
    doctor,
    flags,
    mesh,
    plan,
    predict,
    regions,
    report,
    subjects,
    tracebacks,
    tune,
    tuner,
    validate,
)
from lagom_jax.commands.terminal import OutputError, stdout_for_results, writing
from lagom_jax.errors import LagomError
from lagom_jax.units import printable

_VERBS = (
    *(report, tune, plan, diff, assert_overlap, tuner, predict, validate, calibrate),
    *(mesh, regions, clusters, flags, doctor),
)


class _Parser(argparse.ArgumentParser):
    """Parser whose errors are one line; usage above it would fill half a screen."""

    def error(self, message: str) -> NoReturn:
        self.exit(LagomError.exit_code, f"lagom: {message}; see `{self.prog} --help`\n")


def parser() -> argparse.ArgumentParser:
    """The whole command line, for help texts and for tests."""
    from lagom_jax import __version__

    top = _Parser(
        prog="lagom",
        description="Finds every overlap of communication and computation in a "
        "compiled JAX training step, says what it costs, and finds settings that "
        "make the step shorter. Needs no GPU.",
        epilog="Start with: lagom report llama-3-8b --cluster h100:8x8",
    )
    top.add_argument("--version", action="version", version=f"lagom {__version__}")
    verbs = top.add_subparsers(title="verbs", metavar="VERB", required=True)
    for verb in _VERBS:
        verb.add(verbs)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code.

    Args:
        arguments: The words after `lagom`; by default those of this process.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    if not words:
        parser().print_help(sys.stderr)
        return LagomError.exit_code
    chosen = parser().parse_args(words)
    try:
        with stdout_for_results():
            try:
                code = chosen.run(chosen)
            finally:
                subjects.leave_factories()
        with writing():
            sys.stdout.flush()
    except OutputError as error:
        _close_stdout()
        print(f"lagom: {printable(str(error))}", file=sys.stderr)
        return error.exit_code
    except LagomError as error:
        print(f"lagom: {printable(str(error))}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("lagom: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read our output has seen enough; nothing is left to say to them.
        _close_stdout()
        return 0
    except SystemExit as stop:
        # No verb ends the process itself, so code of the user's did.
        print(
            f"lagom: your own code ended the process, by sys.exit({stop.code!r}) or "
            "the like, before there was a step; put what the file runs as a program "
            'under `if __name__ == "__main__":`',
            file=sys.stderr,
        )
        return LagomError.exit_code
    except Exception as error:
        shown = tracebacks.users_part(error)
        if not shown:
            raise
        print(
            f"{shown}lagom: your own code raised this; "
            f"{tracebacks.FULL}=full shows how it was called",
            file=sys.stderr,
        )
        return 1
    return code


def _close_stdout() -> None:
    """Lets what is left to write go nowhere, so that Python's end is silent."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def entry_point() -> None:
    """Entry point of the console script `lagom`."""
    sys.exit(main())
