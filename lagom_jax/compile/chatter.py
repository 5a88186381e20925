"""Noise of CUDA libraries on stderr, separated from messages that matter.

Native code writes to file descriptor 2 directly, so neither `logging` nor
`sys.stderr` can hold it back.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator

_NOISE = re.compile(
    r"""cudart_stub\.cc
    | All\ log\ messages\ before\ absl::InitializeLog
    | Using\ fallback\ sort\ algorithm
    | cpu_feature_guard
    | computation_placer
    | Unable\ to\ register\ cu(?:DNN|BLAS|FFT)\ factory
    | TF-TRT\ Warning
    """,
    re.VERBOSE,
)
_JAX_LOGGER = "jax._src.xla_bridge"
_PLUGIN_WITHOUT_CUDA = "Jax plugin configuration error"
# The descriptor belongs to all threads: two that put it aside at the same time would
# each put back what the other had put in its place.
_ONE_AT_A_TIME = threading.RLock()


def meaningful(lines: Iterable[str]) -> list[str]:
    """The lines that say something about the user's program.

    Example:
        >>> meaningful(
        ...     [
        ...         "I0000 00:00:1.2 3 cudart_stub.cc:31] Could not find cuda drivers",
        ...         "",
        ...         "W0000 hlo_rematerialization.cc:3198] Can't reduce memory use",
        ...     ]
        ... )
        ["W0000 hlo_rematerialization.cc:3198] Can't reduce memory use"]
    """
    return [line for line in lines if line.strip() and not _NOISE.search(line)]


def gpu_present() -> bool:
    """True if this machine has an NVIDIA driver, found without touching CUDA."""
    return os.path.exists("/dev/nvidiactl") or os.path.exists("/proc/driver/nvidia")


@contextlib.contextmanager
def withheld() -> Iterator[None]:
    """Holds stderr back for a moment and then lets through what is meaningful.

    For the import of jax and the start of its backends, which print lines about
    missing CUDA drivers on machines that have none. Where a driver is present its
    messages are news, and nothing is held back.

    Example:
        >>> with withheld():
        ...     import jax
    """
    if gpu_present():
        yield
        return
    with _ONE_AT_A_TIME:
        yield from _held_back()


def _held_back() -> Iterator[None]:
    try:
        saved = os.dup(2)
    except OSError:
        yield
        return
    logger = logging.getLogger(_JAX_LOGGER)
    with tempfile.TemporaryFile() as held:
        logger.addFilter(_expected_without_cuda)
        _flush()
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            _flush()
            os.dup2(saved, 2)
            os.close(saved)
            logger.removeFilter(_expected_without_cuda)
            held.seek(0)
            printed = held.read().decode(errors="replace")
            for line in meaningful(printed.splitlines()):
                os.write(2, f"{line}\n".encode())


def _flush() -> None:
    # Python's own stderr may be closed, or replaced by one that is.
    with contextlib.suppress(AttributeError, ValueError, OSError):
        sys.stderr.flush()


def _expected_without_cuda(record: logging.LogRecord) -> bool:
    # The plugin refuses to start without CUDA's libraries; compiling deviceless
    # needs it loaded, not started.
    return not record.getMessage().startswith(_PLUGIN_WITHOUT_CUDA)
