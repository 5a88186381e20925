"""How the stand-ins are compiled: all of them into one library."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gpu_stages.cuda.prototypes import HEADERS
from gpu_stages.stage import CannotRunError
from lagom_jax.tuner.build import SOURCES as PLUGIN
from lagom_jax.tuner.build import NoCompilerError, compiler

SOURCES: Final = Path(__file__).parent
_WAY = ("-std=c11", "-O1", "-fPIC", "-shared", "-Wl,-z,defs", "-Wall", "-Wextra")


def compile_standins(folder: Path, options: Sequence[str] = ()) -> Path:
    """Compiles them against the prototypes that are called.

    Args:
        folder: Where the library goes, with what it is made from.
        options: More words for the compiler.

    Raises:
        CannotRunError: It does not compile.
    """
    target = folder / "standins.so"
    (folder / "prototypes.h").write_text("".join(HEADERS.values()))
    sources = sorted(str(path) for path in SOURCES.glob("*.c"))
    try:
        words = [*compiler(), *_WAY, *options, "-I", str(folder), "-I", str(PLUGIN)]
    except NoCompilerError as error:
        raise CannotRunError(f"a dry run needs a C compiler: {error}") from None
    words += ["-o", str(target), *sources, "-lm", "-ldl", "-pthread"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotRunError(f"{shlex.join(words)} failed:\n{done.stderr.strip()}")
    return target
