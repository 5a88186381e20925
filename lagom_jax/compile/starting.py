"""Starting jax in this process: quietly, and not into an abort.

XLA ends the process at a word of `XLA_FLAGS` that it does not know. While stderr is
withheld nobody would see why, so a process of its own tries the flags first.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess

from lagom_jax import processes
from lagom_jax.compile import chatter
from lagom_jax.errors import LagomError
from xla_flags.catalogue import hint

_PARSE_FLAGS = "from jaxlib import xla_client; xla_client.CompileOptions()"
_FATAL = re.compile(r"^F\d{4} .*?\] (.*)$", re.MULTILINE)
_UNKNOWN = re.compile(r"Unknown flag in XLA_FLAGS: --(\w+)")
_TIMEOUT_S = 60


def start_jax() -> None:
    """Imports jax and starts its backends without the CUDA libraries' noise.

    Raises:
        LagomError: XLA refuses `XLA_FLAGS`, or jax finds none of the platforms that it
            was told to use.
    """
    check_flags()
    with chatter.withheld():
        import jax

        try:
            jax.devices()
        # jax raises whatever its plugins raise, an AssertionError among them.
        except Exception as error:
            wanted = jax.config.jax_platforms  # pyright: ignore[reportAttributeAccessIssue]
            if not wanted:
                raise
            raise LagomError(
                f"jax finds no device of the platform that it was told to use, "
                f"{wanted!r} ({type(error).__name__}: {_first_line(error)}): set "
                "JAX_PLATFORMS=cpu. Compiling for GPUs needs none here."
            ) from error


def check_flags() -> None:
    """Tries the `XLA_FLAGS` of this process where a refusal ends nothing.

    Raises:
        LagomError: XLA refuses them.

    Example:
        >>> check_flags()  # says nothing where XLA takes them
    """
    flags = os.environ.get("XLA_FLAGS", "")
    # A name without dashes is a file, whose content may have changed.
    refusal = _refusal(flags) if flags.startswith("--") else _ask(flags)
    if refusal:
        unknown = _UNKNOWN.search(refusal)
        said = refusal.rstrip(". ") + (hint(unknown[1]) if unknown else "")
        raise LagomError(
            "XLA refuses the environment variable XLA_FLAGS: "
            f"{said}{'' if said.endswith('?') else '.'} Correct it, or unset XLA_FLAGS."
        )


@functools.cache
def _refusal(flags: str) -> str:
    return _ask(flags)


def _ask(flags: str) -> str:
    """XLA's error message for these flags; empty where it takes them."""
    if not flags.strip():
        return ""
    try:
        tried = subprocess.run(
            processes.python("-c", _PARSE_FLAGS),
            env=processes.environment(XLA_FLAGS=flags),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        # No process, no answer; the one that compiles will say why.
        return ""
    said = _FATAL.search(tried.stderr.decode(errors="replace"))
    return said[1] if tried.returncode and said else ""


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0]
