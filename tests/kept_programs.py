"""Programs for CPUs that jax keeps from process to process, and from run to run."""

import os
from pathlib import Path


def kept_programs() -> dict[str, str]:
    """What a process needs in its environment to compile a program but once.

    They lie beside the store of compiles. What is compiled for GPUs is not kept, nor is
    a program whose options a plan changes taken for the usual one. Decisions would be
    kept with the programs; a test that is about them names another folder for them.
    """
    return {
        "JAX_COMPILATION_CACHE_DIR": str(
            Path(os.environ["LAGOM_STORE"]).with_name("programs")
        ),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        # They are XLA's own, for GPUs.
        "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
        "LAGOM_CACHE": "false",
    }
