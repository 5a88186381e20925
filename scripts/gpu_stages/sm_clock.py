"""How fast a GPU's clock runs while kernels run: what the model takes for its boost."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Final

from gpu_stages.host import the_gpu

_EVERY_MS: Final = 100


def reading(*, dry: bool) -> list[str]:
    """A command that prints the clock in MHz, line by line, until it is ended."""
    if dry:
        return [sys.executable, "-c", "print(1000)"]
    return [
        "nvidia-smi",
        f"--id={the_gpu()}",
        "--query-gpu=clocks.sm",
        "--format=csv,noheader,nounits",
        f"--loop-ms={_EVERY_MS}",
    ]


@contextlib.contextmanager
def sampled(command: Sequence[str]) -> Iterator[list[float]]:
    """Reads the clock while the body runs.

    Yields:
        An empty list, which has the readings in MHz when the body is done.

    Example:
        >>> with sampled(["echo", "1980"]) as clock:
        ...     pass
        >>> clock in ([], [1980.0])
        True
    """
    found: list[float] = []
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield found
    finally:
        child.terminate()
        printed, _ = child.communicate()
        found += [float(line) for line in printed.split() if line.isdigit()]
