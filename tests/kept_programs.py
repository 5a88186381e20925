"""Programs for CPUs that jax keeps from process to process, and from run to run."""

import os
from pathlib import Path


def kept_in(folder: Path) -> dict[str, str]:
    """What a process needs in its environment to compile a program but once.

    What is compiled for GPUs is not kept, nor is a program whose options a plan changes
    taken for the usual one.
    """
    return {
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        # They are XLA's own, for GPUs.
        "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
    }


def kept_programs() -> dict[str, str]:
    """The same, beside the store of compiles; for processes that decide nothing.

    Decisions would be kept with the programs.
    """
    beside = Path(os.environ["LAGOM_STORE"]).with_name("programs")
    return {**kept_in(beside), "LAGOM_CACHE": "false"}
