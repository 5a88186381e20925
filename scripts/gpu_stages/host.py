"""The GPU of this machine, and all versions that a measurement depends on."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gpu_stages.stage import CannotRunError
from lagom_jax.cluster import Cluster
from lagom_jax.errors import ClusterError
from machine import processor

_PACKAGES: Final = ("jax", "jaxlib", "numpy", "lagom_jax")
_PREFIXES: Final = ("jax-cuda", "nvidia-", "cupy-", "nccl4py")
_ASKED: Final = ("name", "driver_version", "memory.total", "clocks.max.sm")


def gpu_here() -> dict[str, str]:
    """Name, driver and memory of the GPU in use, from the driver.

    Raises:
        CannotRunError: There is none, or no driver.
    """
    if shutil.which("nvidia-smi") is None:
        raise CannotRunError(
            "no nvidia-smi here, so no NVIDIA driver: run this on a machine with a "
            "GPU, or try it with --dry-run"
        )
    asked = subprocess.run(
        [
            "nvidia-smi",
            f"--id={visible_gpu()}",
            f"--query-gpu={','.join(_ASKED)}",
            "--format=csv,noheader",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    words = [word.strip() for word in asked.stdout.split(",")]
    if asked.returncode or len(words) != len(_ASKED):
        said = (asked.stdout + asked.stderr).strip() or "nothing"
        raise CannotRunError(
            f"nvidia-smi finds no GPU {visible_gpu()}; it says: {said}"
        )
    return dict(zip(_ASKED, words, strict=True))


def visible_gpu() -> str:
    """Number of the GPU in use: the first that CUDA may see."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"


def record_of(name: str) -> str:
    """The record of a GPU by the name that its driver gives it.

    Raises:
        CannotRunError: It has none.
    """
    try:
        return Cluster.of_gpus(name, 1, 1).gpu.name
    except ClusterError as error:
        raise CannotRunError(
            f"{error}. Name the record of a GPU like it, as in --gpu=h100"
        ) from error


def machine(command: Sequence[str], gpu: dict[str, str]) -> dict[str, str]:
    """Provenance of a result: command, date, GPU, processor, versions, commit."""
    return {
        "command": " ".join(command),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        **gpu,
        "processor": f"{os.cpu_count()} cores of a {processor()}",
        "system": platform.release(),
        "Python": platform.python_version(),
        "source": _source(),
        **_packages(),
    }


def _packages() -> dict[str, str]:
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.name.lower()
        if name in _PACKAGES or name.startswith(_PREFIXES):
            found[name] = distribution.version
    return dict(sorted(found.items()))


def _source() -> str:
    """Commit of the sources; `unknown` outside a clone."""
    asked = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return asked.stdout.strip() or "unknown"
