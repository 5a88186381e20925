"""How fast a GPU's clock runs while kernels run: what the model takes for its boost."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Final

from gpu_stages.host import the_gpu

_EVERY_MS: Final = 100
# Percent: below that the clock may be that of a GPU at rest.
_BUSY: Final = 50


def reading(*, dry: bool) -> list[str]:
    """A command that prints the clock in MHz and how busy the GPU is in percent."""
    if dry:
        return [sys.executable, "-c", "print('1000, 99'); print('300, 0')"]
    return [
        "nvidia-smi",
        f"--id={the_gpu()}",
        "--query-gpu=clocks.sm,utilization.gpu",
        "--format=csv,noheader,nounits",
        f"--loop-ms={_EVERY_MS}",
    ]


@contextlib.contextmanager
def sampled(command: Sequence[str]) -> Iterator[list[float]]:
    """Reads the clock while the body runs.

    Yields:
        An empty list, which has the readings in MHz of a busy GPU when the body is
        done.

    Example:
        >>> with sampled(["echo", "1980, 100"]) as clock:
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
        # What cannot be read is said in words.
        lines = re.findall(r"^(\d+), (\d+)$", printed, re.MULTILINE)
        found += [float(clock) for clock, busy in lines if int(busy) >= _BUSY]
