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


def cluster_of(gpu: str, gpus: int = 1) -> Cluster:
    """The host that so many GPUs of a record would make up.

    Raises:
        CannotRunError: No system has such GPUs.

    Example:
        >>> cluster_of("h200", 8).name, cluster_of("gb200").name
        ('h200:1x8', 'gb200-nvl72:1x1')
    """
    # Hosts that one rents have such GPUs too; the GPU's own system comes first.
    for system in sorted(Cluster.names(), key=lambda name: not name.startswith(gpu)):
        if Cluster.parse(system).gpu.name == gpu:
            return Cluster.parse(f"{system}:1x{gpus}")
    raise CannotRunError(
        f"no system has GPUs with the record '{gpu}'; name one of "
        + ", ".join(sorted({Cluster.parse(name).gpu.name for name in Cluster.names()}))
        + ", as in --gpu=h100"
    )


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
