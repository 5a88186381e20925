"""A stand-in for ptxas, NVIDIA's assembler, for kernels that nobody runs.

XLA's GPU compiler assembles every kernel by starting ptxas, a quarter of the time of a
compile, and looks neither at the schedule nor at the memory again afterwards. What is
compiled without a GPU is read and never run, so an assembler that writes an empty file
leaves everything that is read as it is. The stand-in answers for the version of the
real one, which decides what kernels are made of.
"""

from __future__ import annotations

import contextlib
import logging
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from lagom_jax.compile.toolchain import Toolchain

LOG = logging.getLogger("lagom_jax")

# The file to write follows -o; any content will do, but none will not.
_SCRIPT = """\
#!/bin/sh
case "$1" in
  --version) exec {ptxas} --version ;;
esac
while [ $# -gt 0 ]; do
  [ "$1" = -o ] && echo "not assembled" > "$2"
  shift
done
"""


@contextlib.contextmanager
def stand_in(toolchain: Toolchain) -> Iterator[Path | None]:
    """A CUDA folder whose ptxas assembles nothing.

    Args:
        toolchain: The real tools.

    Yields:
        What `CUDA_ROOT` has to be; None where the real assembler has to be used, for
        there is no place from which scripts may be started.

    Example:
        >>> with stand_in(Toolchain({}, None, None, None)) as folder:
        ...     print(folder)
        None
    """
    if toolchain.ptxas is None:
        yield None
        return
    try:
        folder = tempfile.TemporaryDirectory(prefix="lagom-cuda-")
    except OSError as error:
        LOG.info("kernels are assembled: %s", error)
        yield None
        return
    with folder as name:
        root = Path(name)
        yield root if _made(root, toolchain) else None


def _made(root: Path, toolchain: Toolchain) -> bool:
    """Writes the stand-in for ptxas; true if it answers as the real one would."""
    ptxas = root / "bin" / "ptxas"
    try:
        ptxas.parent.mkdir()
        # Kernels that are compiled one by one ask for a linker, too.
        for tool in (ptxas, ptxas.with_name("nvlink")):
            tool.write_text(_SCRIPT.format(ptxas=shlex.quote(str(toolchain.ptxas))))
            tool.chmod(0o700)
        if toolchain.libdevice is not None:
            # <root>/nvvm/libdevice/libdevice.10.bc
            (root / "nvvm").symlink_to(toolchain.libdevice.parents[1])
        answered = subprocess.run(
            [ptxas, "--version"], capture_output=True, timeout=30, check=True
        )
        return b"ptxas" in answered.stdout
    except (OSError, subprocess.SubprocessError) as error:
        LOG.info("kernels are assembled, for a stand-in cannot be started: %s", error)
        return False
