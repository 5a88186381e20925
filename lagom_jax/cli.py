"""The command line: `lagom VERB ...`.

Each verb is a module of `lagom_jax.commands` with an `add` that declares it and a
function that runs it. Exit codes: 0 done, 2 something the user can put right, 3 the
GPU compiler is not installed as it must be, 4 the compiler refused, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from lagom_jax.commands import calibrate, clusters, doctor, report
from lagom_jax.errors import LagomError

_VERBS = (report, calibrate, clusters, doctor)


def parser() -> argparse.ArgumentParser:
    """The whole command line, for help texts and for tests."""
    from lagom_jax import __version__

    top = argparse.ArgumentParser(
        prog="lagom",
        description="Finds every overlap of communication and computation in a "
        "compiled JAX training step, and says what it costs. Needs no GPU.",
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
    chosen = parser().parse_args(arguments)
    try:
        code = chosen.run(chosen)
        sys.stdout.flush()
    except LagomError as error:
        print(f"lagom: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("lagom: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read our output has seen enough; nothing is left to say to them.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def entry_point() -> None:
    """What the console script `lagom` starts."""
    sys.exit(main())
