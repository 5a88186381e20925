"""How far real kernels and links stay behind the data sheet, per GPU.

The constants are records, each number with its source. Those of matmuls were fitted to
measurements (`scripts/fit_matmuls.py`), and so were the surfaces of collectives beside
them (`scripts/fit_collectives.py`); the others are estimates, and say so. All that a
model is made of is one value, so that it can be passed on, changed and told apart.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any, cast

import numpy as np

from lagom_jax.cluster import Gpu
from lagom_jax.cost.kernel_constants import KernelConstants, load_kernel_constants
from lagom_jax.cost.sharing import SharingConstants, load_sharing_constants
from lagom_jax.cost.surface import Surfaces, load_surfaces


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Constants:
    """What a GPU reaches of its peaks, what starting costs, and what sharing does.

    Two of them are equal only if they are the same object, as those of kernels are.
    """

    gpu: str
    kernels: KernelConstants
    sharing: SharingConstants
    surfaces: Surfaces
    """Times of collectives at NCCL's default setting."""
    network_efficiency: float
    network_latency_seconds: float
    """Added for every doubling of the number of domains a collective spans."""
    one_shot_seconds: float
    """A small all-reduce that XLA runs as a kernel of its own."""

    @property
    def launch_seconds(self) -> float:
        """Start, drain and gap of a kernel."""
        return self.kernels.launch_seconds

    @property
    def digest(self) -> str:
        """A hash of every constant: the same in all processes, another for others.

        Example:
            >>> from lagom_jax.cluster import Cluster
            >>> h100 = load_constants(Cluster.parse("h100").gpu)
            >>> other = dataclasses.replace(h100, one_shot_seconds=1.0)
            >>> len(h100.digest), h100.digest == other.digest
            (64, False)
        """
        text = json.dumps(_plain(self), sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: object) -> object:
    """The value as JSON has it."""
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return {field.name: _plain(getattr(value, field.name)) for field in fields}
    if isinstance(value, Mapping):
        items = cast("Mapping[str, object]", value).items()
        return {str(name): _plain(item) for name, item in items}
    if isinstance(value, np.ndarray):
        return cast("list[Any]", value.tolist())
    if isinstance(value, tuple | list):
        return [_plain(item) for item in cast("list[object]", value)]
    return value


@functools.cache
def load_constants(gpu: Gpu) -> Constants:
    """The constants of a GPU.

    Raises:
        ClusterError: There are none for a GPU of that name.

    Example:
        >>> from lagom_jax.cluster import Cluster
        >>> load_constants(Cluster.parse("h100").gpu).network_efficiency
        0.9
    """
    folder = resources.files(__name__.rpartition(".")[0]) / "constants" / "estimated"
    record: dict[str, Any] = json.loads((folder / "network.json").read_text())
    return Constants(
        gpu=gpu.name,
        kernels=load_kernel_constants(gpu.name),
        sharing=load_sharing_constants(gpu),
        surfaces=load_surfaces(gpu.name),
        **{name: item["value"] for name, item in record.items()},
    )
