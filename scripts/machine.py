"""What benchmarks say of the machine that they ran on."""

from __future__ import annotations

import platform
from pathlib import Path


def processor() -> str:
    """What the system calls it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
