"""Recording what runs on the devices, kernel by kernel."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import jax

WITHOUT_GRAPHS: Final = {"xla_gpu_enable_command_buffer": ""}
"""Compiler options: kernels in a CUDA graph may name no instruction in a profile."""


@contextlib.contextmanager
def recorded(folder: Path) -> Iterator[None]:
    """Writes a profile of the devices into a folder."""
    options = jax.profiler.ProfileOptions()
    # Of Python nothing is asked, and it would be the most of the profile.
    options.python_tracer_level = 0
    with jax.profiler.trace(str(folder), profiler_options=options):
        yield
