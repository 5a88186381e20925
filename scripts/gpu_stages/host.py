"""The GPU of this machine, and all versions that a measurement depends on."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Final

from gpu_stages.stage import CannotRunError
from lagom_jax.cluster import Cluster
from lagom_jax.errors import ClusterError
from machine import processor

_PACKAGES: Final = ("jax", "nvidia-", "cupy-", "nccl4py", "numpy", "lagom_jax")
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
    query = f"--query-gpu={','.join(_ASKED)}"
    asked = subprocess.run(
        ["nvidia-smi", f"--id={visible_gpu()}", query, "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    )
    words = [word.strip() for word in asked.stdout.split(",")]
    if asked.returncode or len(words) != len(_ASKED):
        answer = (asked.stdout + asked.stderr).strip() or "nothing"
        raise CannotRunError(
            f"nvidia-smi finds no GPU {visible_gpu()}; it says: {answer}"
        )
    return dict(zip(_ASKED, words, strict=True))


def visible_gpu() -> str:
    """Number of the GPU in use: the first that CUDA may see."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"


def system_of(name: str) -> str:
    """The system that has a GPU, by the name that its driver gives it.

    Raises:
        CannotRunError: There is none, or there are several.
    """
    try:
        return Cluster.of_gpus(name, 1, 1).name.partition(":")[0]
    except ClusterError as error:
        raise CannotRunError(
            f"{error}. Name a system with GPUs like it, as in --gpu=h100"
        ) from error


def machine(gpu: dict[str, str]) -> dict[str, str]:
    """Provenance of results: date, GPU, processor, versions, commit."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    packages = {
        one.name.lower(): one.version
        for one in importlib.metadata.distributions()
        if one.name.lower().startswith(_PACKAGES)
    }
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        **gpu,
        "processor": f"{os.cpu_count()} cores of a {processor()}",
        "system": platform.release(),
        "Python": platform.python_version(),
        "source": commit.stdout.strip() or "unknown",
        **dict(sorted(packages.items())),
    }
