"""How far real kernels stay behind the data sheet.

The constants are records, `constants/*.json`, one per GPU, each number with its source.
`calibrated` ones were fitted to measurements by `scripts/fit_constants.py`; the others
are estimates, and say so.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from lagom_jax.errors import ClusterError


@dataclasses.dataclass(frozen=True, slots=True)
class Constants:
    """What a GPU reaches of its peaks, and what starting something costs."""

    gpu: str
    calibrated: bool
    """False where the numbers are estimates for want of measurements."""
    source: str
    matmul_efficiency: Mapping[str, float]
    """By operand type; `other` for types that are not listed."""
    memory_efficiency: float
    launch_seconds: float
    network_efficiency: float
    network_latency_seconds: float
    """Added for every doubling of the number of domains a collective spans."""
    one_shot_seconds: float
    """A small all-reduce that XLA runs as a kernel of its own."""


@functools.cache
def load_constants(gpu: str) -> Constants:
    """The constants of a GPU.

    Example:
        >>> load_constants("h100").calibrated
        True
    """
    folder = resources.files(__name__.rpartition(".")[0]) / "constants"
    path = folder / f"{gpu}.json"
    if not path.is_file():
        raise ClusterError(
            f"there are no cost constants for the GPU '{gpu}'; known are "
            + ", ".join(sorted(p.name[:-5] for p in folder.iterdir()))
        )
    record: dict[str, Any] = json.loads(path.read_text())
    values = {key: item["value"] for key, item in record["kernels"].items()}
    return Constants(
        gpu=gpu,
        calibrated=record["calibrated"],
        source=record["source"],
        **values,
    )
