"""How far real kernels and links stay behind the data sheet, per GPU.

The constants are records, each number with its source. Those of matmuls were fitted to
measurements (`scripts/fit_matmuls.py`), and so were the surfaces of collectives beside
them (`scripts/fit_collectives.py`); the others are estimates, and say so.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from importlib import resources
from typing import Any

from lagom_jax.cost.kernel_constants import KernelConstants, load_kernel_constants


@dataclasses.dataclass(frozen=True, slots=True)
class Constants:
    """What a GPU reaches of its peaks, and what starting something costs."""

    gpu: str
    kernels: KernelConstants
    network_efficiency: float
    network_latency_seconds: float
    """Added for every doubling of the number of domains a collective spans."""
    one_shot_seconds: float
    """A small all-reduce that XLA runs as a kernel of its own."""

    @property
    def launch_seconds(self) -> float:
        """Start, drain and gap of a kernel."""
        return self.kernels.launch_seconds


@functools.cache
def load_constants(gpu: str) -> Constants:
    """The constants of a GPU.

    Raises:
        ClusterError: There are none for a GPU of that name.

    Example:
        >>> load_constants("h100").network_efficiency
        0.9
    """
    folder = resources.files(__name__.rpartition(".")[0]) / "constants" / "estimated"
    record: dict[str, Any] = json.loads((folder / "network.json").read_text())
    return Constants(
        gpu=gpu,
        kernels=load_kernel_constants(gpu),
        **{name: item["value"] for name, item in record.items()},
    )
