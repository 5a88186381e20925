"""Starting this Python again, for what must not end the user's process."""

from __future__ import annotations

import os
import sys


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
