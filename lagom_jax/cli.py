"""The command line: `lagom VERB ...`.

Each verb is a module of `lagom_jax.commands` with an `add` that declares it and a
function that runs it, and is imported where it is asked for.

Exit codes: 0 done, 1 an exception, plans that differ or do not hold, a step that
exposes too much or became too slow, or an NCCL that will not load the plugin, 2
something the user can put right, 3 the GPU compiler is not installed as it must be, 4
the compiler refused, 5 some rows of a table could not be predicted, 130 interrupted.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import sys
from collections.abc import Sequence
from typing import NoReturn

from lagom_jax import __version__
from lagom_jax.commands import VERBS
from lagom_jax.errors import LagomError

# Python looks for garbage in circles whenever so many more objects are alive; 700 is
# usual. Of what a command imports and makes nearly all lasts as long as it does, and to
# look at it again and again took 7 % of a plan whose compiles are kept.
_OBJECTS_BETWEEN_SEARCHES = 1_000_000


class _Parser(argparse.ArgumentParser):
    """Parser whose errors are one line; usage above it would fill half a screen."""

    def error(self, message: str) -> NoReturn:
        self.exit(LagomError.exit_code, f"lagom: {message}; see `{self.prog} --help`\n")


def parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """The command line, with the arguments of the verb that is asked for.

    Args:
        words: The words after `lagom`.
    """
    top = _Parser(
        prog="lagom",
        description="Finds every overlap of communication and computation in a "
        "compiled JAX training step, says what it costs, and finds settings that "
        "make the step shorter. Needs no GPU.",
        epilog="Start with: lagom report llama-3-8b --cluster h100:8x8",
    )
    top.add_argument("--version", action="version", version=f"lagom {__version__}")
    verbs = top.add_subparsers(title="verbs", metavar="VERB", required=True)
    asked = next((word for word in words if word in VERBS), None)
    for verb, purpose in VERBS.items():
        if verb == asked:
            module = f"lagom_jax.commands.{verb.replace('-', '_')}"
            importlib.import_module(module).add(verbs)
        else:
            verbs.add_parser(verb, help=purpose)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code.

    Args:
        arguments: The words after `lagom`; by default those of this process.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    if not words:
        parser(words).print_help(sys.stderr)
        return LagomError.exit_code
    chosen = parser(words).parse_args(words)
    # Not for help: it prints tables, and knows how a user's own code can end.
    from lagom_jax.commands.running import run

    return run(chosen)


def entry_point() -> None:
    """Entry point of the console script `lagom`."""
    gc.set_threshold(_OBJECTS_BETWEEN_SEARCHES)
    sys.exit(main())
