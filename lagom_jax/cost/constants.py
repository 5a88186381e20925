"""Efficiencies of real kernels and links against the data sheet, per GPU.

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
import math
from collections.abc import Mapping
from importlib import resources
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from lagom_jax.cluster import Cluster
from lagom_jax.cluster.records import read_system
from lagom_jax.cost.kernel_constants import KernelConstants, load_kernel_constants
from lagom_jax.cost.nccl_facts import NcclFacts, nccl_facts
from lagom_jax.cost.sharing_constants import SharingConstants, load_sharing_constants
from lagom_jax.cost.surface import Surfaces, load_surfaces
from lagom_jax.cost.transport_constants import (
    TransportConstants,
    load_transport_constants,
)
from lagom_jax.plan.transport import CtaPolicy

_CARD_BYTES_PER_S = 50e9


@dataclasses.dataclass(frozen=True, slots=True)
class NetworkConstants:
    """Efficiency of the network between domains."""

    efficiency: float
    """Share of the cards' nominal rate."""
    crossing_seconds: float
    """Added once to what crosses it, beside a hop's own latency."""
    ramp: float
    """Times the root of the microseconds that the bytes take on it."""
    tree_ramp: float
    """And so of an all-reduce, whose bytes go up and down a tree."""
    spread: float = 0.0
    """Standard deviation of the log of what the constants miss of rows kept out."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Constants:
    """A GPU's share of its peaks, costs of starting, and constants of sharing.

    Two of them are equal only if they are the same object, as those of kernels are.
    """

    gpu: str
    kernels: KernelConstants
    sharing: SharingConstants
    surfaces: Surfaces
    """Times of collectives at NCCL's default setting."""
    network: NetworkConstants
    facts: NcclFacts
    """NCCL's own constants, and what a channel reaches."""
    one_shot_seconds: float
    """A small all-reduce that XLA runs as a kernel of its own."""
    transports: TransportConstants
    """Needs and loads of collectives off the rings."""
    cta_policy: CtaPolicy = "default"
    """Uses of the SMs that the process spares."""

    @property
    def nccl(self) -> str:
        """NCCL's version."""
        return self.facts.version

    @property
    def launch_seconds(self) -> float:
        """Start, drain and gap of a kernel."""
        return self.kernels.launch_seconds

    @property
    def digest(self) -> str:
        """A hash of every constant: the same in all processes, another for others.

        Example:
            >>> h100 = load_constants(Cluster.parse("h100"))
            >>> other = dataclasses.replace(h100, one_shot_seconds=1.0)
            >>> len(h100.digest), h100.digest == other.digest
            (64, False)
        """
        text = json.dumps(_plain(self), sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()


# A sentence about a number changes no price of a step, nor does how sure it is, nor
# what holds for a benchmark's loop alone.
_NO_PRICE: Final = ("source", "spread", "fall_range", "cache_bytes_per_cycle")


def _plain(value: object) -> object:
    """The value as JSON has it."""
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return {
            field.name: _plain(getattr(value, field.name))
            for field in fields
            if field.name not in _NO_PRICE
        }
    if isinstance(value, Mapping):
        items = cast("Mapping[str, object]", value).items()
        return {str(name): _plain(item) for name, item in items}
    if isinstance(value, np.ndarray):
        return cast("list[Any]", value.tolist())
    if isinstance(value, tuple | list):
        return [_plain(item) for item in cast("list[object]", value)]
    return value


@functools.cache
def load_constants(cluster: Cluster, nccl: str = "") -> Constants:
    """The constants of a cluster's GPUs and network.

    Args:
        cluster: The cluster.
        nccl: NCCL's version; by default that of its record.

    Raises:
        ClusterError: There are none for a GPU of that name.
        MeasurementError: `nccl` is no version.

    Example:
        >>> load_constants(Cluster.parse("h100"), "2.28.9").nccl
        '2.28.9'
    """
    gpu = cluster.gpu
    folder = resources.files(__name__.rpartition(".")[0]) / "constants" / "estimated"
    record: dict[str, Any] = json.loads((folder / "launches.json").read_text())
    return Constants(
        gpu=gpu.name,
        kernels=load_kernel_constants(gpu.name),
        sharing=load_sharing_constants(gpu),
        surfaces=load_surfaces(gpu.name, cluster.inside.kind),
        network=load_network(cluster),
        transports=load_transport_constants(),
        facts=nccl_facts(cluster, nccl),
        **{name: item["value"] for name, item in record.items()},
    )


def load_network(cluster: Cluster) -> NetworkConstants:
    """The constants of a cluster's network: measured on it, or for any of its rate.

    Those for any are bounded by what was measured with the same GPUs: no better than
    of a faster network, no worse than of a slower one.

    Example:
        >>> fast, slow = (Cluster.parse(name) for name in ("h100", "a40-nvlink"))
        >>> load_network(fast).crossing_seconds < load_network(slow).crossing_seconds
        True
    """
    name, rate = cluster.system.name, cluster.between.bytes_per_s
    if name in measured_networks():
        return _network(name)
    found = _costs(elsewhere(_network("any"), rate), rate)
    for other in measured_networks():
        system = read_system(other)
        if system.gpu.name == cluster.gpu.name:
            known = system.between.bytes_per_s
            bound = _costs(_network(other), known)
            if known > rate:
                found = np.maximum(found, bound)
            elif known < rate:
                found = np.minimum(found, bound)
    per_byte, crossing, ramp, tree_ramp = (float(cost) for cost in found)
    return NetworkConstants(
        1 / (per_byte * rate), crossing, ramp, tree_ramp, _network("any").spread
    )


def _costs(known: NetworkConstants, bytes_per_s: float) -> npt.NDArray[np.float64]:
    """Costs of a network of that rate: no price falls as one of them grows."""
    per_byte = 1 / (known.efficiency * bytes_per_s)
    return np.array([per_byte, known.crossing_seconds, known.ramp, known.tree_ramp])


def elsewhere(known: NetworkConstants, bytes_per_s: float) -> NetworkConstants:
    """Constants of cards of 50 GB/s, for others: slower ones are older, and later.

    Example:
        >>> elsewhere(NetworkConstants(0.9, 1e-5, 2, 20), 12.5e9).crossing_seconds
        2e-05
    """
    slower = math.sqrt(_CARD_BYTES_PER_S / bytes_per_s)
    return dataclasses.replace(known, crossing_seconds=known.crossing_seconds * slower)


def measured_networks() -> tuple[str, ...]:
    """The systems whose network was measured.

    Example:
        >>> "a3-mega" in measured_networks()
        True
    """
    return tuple(sorted(_networks().keys() - {"any"}))


def _network(name: str) -> NetworkConstants:
    item: dict[str, Any] = _networks()[name]
    return NetworkConstants(**{key: fact["value"] for key, fact in item.items()})


@functools.cache
def _networks() -> dict[str, Any]:
    folder = resources.files(__name__.rpartition(".")[0]) / "constants"
    return json.loads((folder / "networks.json").read_text())
