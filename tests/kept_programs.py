"""Programs for CPUs that jax keeps from process to process, and from run to run."""

import contextlib
import json
import os
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

# What small programs take is compiling them, most of it in emitters of fusions, which
# later releases cannot do without.
COMPILED_SOONER = "--xla_cpu_use_fusion_emitters=false" * version("jaxlib").startswith(
    "0.10."
)


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
        "XLA_FLAGS": COMPILED_SOONER,
        # They are XLA's own, for GPUs.
        "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
        "LAGOM_CACHE": "false",
    }


@contextlib.contextmanager
def programs_kept() -> Iterator[None]:
    """The same for programs of this process, as long as the block lasts."""
    wanted = {
        name.lower(): value
        for name, value in kept_programs().items()
        if name.startswith("JAX_")
    }
    before = {name: getattr(jax.config, name) for name in wanted}
    try:
        for name, value in wanted.items():
            number = isinstance(before[name], int | float)
            jax.config.update(name, json.loads(value) if number else value)
        compilation_cache.reset_cache()
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
