"""A verb run: what it raises, in a line and as an exit code."""

from __future__ import annotations

import argparse
import os
import sys

from lagom_jax.commands import tracebacks
from lagom_jax.commands.entered import leave_factories
from lagom_jax.commands.terminal import OutputError, stdout_for_results, writing
from lagom_jax.errors import LagomError
from lagom_jax.units import printable


def run(chosen: argparse.Namespace) -> int:
    """Runs the verb that was chosen, and returns the exit code of the command.

    Args:
        chosen: The arguments; `run` among them is the verb's function.
    """
    try:
        with stdout_for_results():
            try:
                code = chosen.run(chosen)
            finally:
                leave_factories()
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
