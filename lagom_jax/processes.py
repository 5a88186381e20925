"""Starting this Python again, for what must not end or crowd the user's process."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def python(*arguments: str) -> list[str]:
    """The command line of this very interpreter.

    It adds no folder to the search path by itself and prints no warnings.

    Example:
        >>> python("-m", "module")[1:]
        ['-P', '-W', 'ignore', '-m', 'module']
    """
    return [sys.executable, "-P", "-W", "ignore", *arguments]


def environment(**own: str) -> dict[str, str]:
    """This process's environment, with everything that it can import.

    Args:
        **own: What only the new process has.

    Example:
        >>> environment(JAX_PLATFORMS="cpu")["JAX_PLATFORMS"]
        'cpu'
    """
    paths = [path or os.getcwd() for path in sys.path]
    return os.environ | {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))} | own


def free_memory() -> int:
    """Bytes of memory that are free on this machine."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return 1024 * int(line.split()[1])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def memory_of(process: int) -> int:
    """Bytes of memory that a process and its children have; 0 once it is gone."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return 0
    own = pages * os.sysconf("SC_PAGE_SIZE")
    return own + sum(memory_of(int(child)) for child in children)
