"""Build of the plugin: one call of a C compiler, nothing but libc to link.

Imports only the standard library, since the wheel is built before anything is there.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

NAME: Final = "libnccl-tuner-lagom.so"
SOURCES: Final = Path(__file__).with_name("plugin")
WARNINGS: Final = ("-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow")
_WAY = ("-std=c11", "-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-z,defs")


class NoCompilerError(Exception):
    """There is no C compiler, or it cannot compile the plugin."""


def compiler() -> list[str]:
    """The words that start the C compiler: `$CC`, or `cc`.

    Raises:
        NoCompilerError: There is none.
    """
    words = shlex.split(os.environ.get("CC", "")) or ["cc"]
    if shutil.which(words[0]) is None:
        raise NoCompilerError(
            f"no C compiler {words[0]!r}: install one (on Debian and Ubuntu, "
            "apt-get install gcc libc6-dev), or name it in CC"
        )
    return words


def compile_plugin(target: Path, options: Sequence[str] = ("-O2",)) -> Path:
    """Compiles the plugin.

    Args:
        target: The library to write; it is whole, or as it was.
        options: More words for the compiler.

    Raises:
        NoCompilerError: It could not be compiled.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     compile_plugin(Path(folder) / NAME).name
        'libnccl-tuner-lagom.so'
    """
    sources = sorted(str(path) for path in SOURCES.glob("*.c"))
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".plugin") as folder:
        made = Path(folder) / target.name
        words = [*compiler(), *_WAY, *options, "-o", str(made), *sources, "-ldl"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NoCompilerError(f"{shlex.join(words)} failed:\n{done.stderr.strip()}")
        made.replace(target)
    return target
