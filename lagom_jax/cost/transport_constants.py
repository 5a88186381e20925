"""Constants of collectives off the rings: when each can be had, and what it takes."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any, TypeAlias

ByGeneration: TypeAlias = Mapping[str, Mapping[str, float]]


@dataclasses.dataclass(frozen=True, slots=True)
class TransportConstants:
    """Conditions of each transport, and its load."""

    symmetric_since: str
    copy_engines_since: str
    one_sided_since: str
    zero_alone_since: str
    automatic_since: str
    automatic_elements: int
    """Of each rank's part, from which on a Blackwell's all-gather is copied anyway."""
    several_at_once_since: str
    cuda_driver: str
    base_microseconds: ByGeneration
    block_gib_per_s: ByGeneration
    most_gib_per_s: ByGeneration
    ll_factor: float
    ll_multicast_gain: float
    multicast_gain: float
    blocks: int
    multicast_heads: Mapping[str, int]
    enough: float
    block_penalty: float
    correction: Mapping[str, float]
    """Measured over modelled time of symmetric kernels, by generation."""
    copy_start_microseconds: float
    copy_each_microseconds: float
    """Added for every copy of a batch."""
    one_sided_start_microseconds: float
    one_sided_each_microseconds: float
    """Added for every peer."""
    copy_share: float
    pool_fraction: float
    """Of the memory, that jax sets aside for ordinary buffers by default."""


@functools.cache
def transports_record() -> dict[str, Any]:
    """The record as it is in its file: values, sources, and ranges of estimates."""
    path = resources.files(__name__.rpartition(".")[0]) / "transports.json"
    return json.loads(path.read_text())


@functools.cache
def load_transport_constants() -> TransportConstants:
    """The constants of the record.

    Example:
        >>> load_transport_constants().cuda_driver
        '12.5'
    """
    record = transports_record()
    return TransportConstants(**{name: item["value"] for name, item in record.items()})
