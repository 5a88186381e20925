"""Constants of `lagom_jax.cost.sharing`: measured on a GPU, or estimated."""

from __future__ import annotations

import dataclasses
import functools
import json
from importlib import resources
from typing import Any

from lagom_jax.cluster import Gpu
from lagom_jax.cost.measured import measured
from lagom_jax.hlo.kinds import POINT_TO_POINT
from lagom_jax.plan.setting import PAYLOAD, Setting


@dataclasses.dataclass(frozen=True, slots=True)
class SharingConstants:
    """Strength of the contention between tasks on one GPU."""

    persistent_kernels: bool
    """Large kernels keep one block per SM and deal out tiles in rounds."""
    saturating_sm_share: float
    """The share of the SMs that already uses all of the memory bandwidth."""
    eviction: float
    """Part, of what a kernel meant to find in the cache it reads again once twice
    as much is in flight as the cache holds."""
    start_seconds: float
    """By which a kernel beside a collective begins or ends later."""
    start_beside_all_reduce_seconds: float
    """The same beside an all-reduce in the Simple protocol."""
    ring_passes: float
    """Passes over memory for each byte that a GPU sends in a ring or a tree."""
    exchange_passes: float
    """The same for all-to-all and permutes."""
    waits_for_kernels: float
    """Strength of a collective's waits for the bytes of kernels; of theirs it is 1."""

    def passes(self, kind: str, setting: Setting) -> float:
        """Passes over memory for each byte that a GPU sends.

        Args:
            kind: The kind of collective.
            setting: How it is run.
        """
        exchanged = kind in POINT_TO_POINT or kind.endswith("all-to-all")
        passes = self.exchange_passes if exchanged else self.ring_passes
        if setting.algorithm.startswith("nvls"):
            # The switch reads and writes where the data lies: no buffer in between.
            return passes - 1
        # Flags go through the buffer with the data, written there and read.
        return passes + 2 * (1 / PAYLOAD[setting.protocol] - 1)


@functools.cache
def load_sharing_constants(gpu: Gpu) -> SharingConstants:
    """The constants of a GPU: measured on it, or estimated for its generation.

    Example:
        >>> from lagom_jax.cluster import Cluster
        >>> load_sharing_constants(Cluster.parse("a40-nvlink").gpu).persistent_kernels
        False
    """
    folder = resources.files(__name__.rpartition(".")[0]) / "constants" / "estimated"
    record: dict[str, Any] = json.loads((folder / "sharing.json").read_text())
    generation = gpu.compute_capability.partition(".")[0]
    known: dict[str, bool] = record["persistent_kernels"]["value"]
    if generation not in known:
        # A newer generation is most like the newest that is known.
        generation = max(known, key=int)
    values = {name: item["value"] for name, item in record.items()}
    estimated = SharingConstants(**{**values, "persistent_kernels": known[generation]})
    return dataclasses.replace(estimated, **measured(gpu.name, "sharing"))
