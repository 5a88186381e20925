"""The model of a cluster: what tasks cost alone, and what they do to each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from lagom_jax.cluster import Cluster
from lagom_jax.cost.collective import collective_price
from lagom_jax.cost.compute import kernel_price
from lagom_jax.cost.constants import Constants, load_constants
from lagom_jax.cost.loads import (
    CollectiveLoad,
    KernelLoad,
    kernel_load,
    memory_rate,
)
from lagom_jax.cost.nccl_default import nccl_default
from lagom_jax.cost.prices import Price
from lagom_jax.cost.setting import Setting
from lagom_jax.cost.sharing import SharedGpu, load_sharing_constants
from lagom_jax.cost.span import span_of, wire_bytes
from lagom_jax.cost.surface import load_surfaces
from lagom_jax.hlo.collective import Collective
from lagom_jax.schedule.program import Kernel

_NO_CHANNELS = CollectiveLoad(0, 0, 0.0, "", 0.0)


@dataclasses.dataclass(frozen=True, slots=True)
class CostModel:
    """Prices on a cluster, and contention, under settings of the collectives.

    Example:
        >>> from lagom_jax.cluster import Cluster
        >>> CostModel.of(Cluster.parse("h100:8x8")).constants.gpu
        'h100'
    """

    cluster: Cluster
    constants: Constants
    settings: Mapping[Collective, Setting] = dataclasses.field(
        default_factory=dict[Collective, Setting]
    )
    """How some collectives are run; the others as NCCL chooses by itself."""

    @classmethod
    def of(cls, cluster: Cluster) -> CostModel:
        """The model of a cluster with the constants known for its GPU."""
        return cls(cluster, load_constants(cluster.gpu.name))

    def under(self, settings: Mapping[Collective, Setting]) -> CostModel:
        """The same model with other settings for some collectives."""
        return dataclasses.replace(self, settings={**self.settings, **settings})

    @property
    def source(self) -> str:
        """Where the prices come from, in words."""
        surfaces = load_surfaces(self.cluster.gpu.name)
        matmuls = self.constants.kernels.matmul("bf16")
        if matmuls.calibrated and surfaces.calibrated:
            return (
                "calibrated: matmuls and collectives in a domain on published "
                "measurements (`lagom validate` says how well); other kernels, "
                "launches, contention and the network estimated"
            )
        return (
            f"estimated: matmuls {matmuls.source.removeprefix('estimated: ')}; "
            f"collectives {surfaces.source}"
        )

    def kernel(self, kernel: Kernel) -> Price:
        """The price of a kernel alone."""
        return kernel_price(kernel.work, self.cluster, self.constants)

    def collective(self, collective: Collective) -> Price:
        """The price of a collective alone."""
        setting = self.settings.get(collective)
        return collective_price(collective, self.cluster, self.constants, setting)

    def contention(self) -> SharedGpu:
        """What tasks do to each other on the cluster's GPUs."""
        gpu = self.cluster.gpu
        return SharedGpu(
            gpu,
            load_sharing_constants(gpu.compute_capability),
            self.kernel_load,
            self.collective_load,
        )

    def kernel_load(self, kernel: Kernel) -> KernelLoad:
        """What a kernel needs of the GPU."""
        return kernel_load(kernel.work, self.kernel(kernel), self.cluster.gpu)

    def collective_load(self, collective: Collective) -> CollectiveLoad:
        """What a collective takes of the GPU."""
        span = span_of(collective.groups, self.cluster)
        if span.size == 1 or collective.one_shot_kernel:
            return _NO_CHANNELS
        kind, nbytes = collective.kind, float(collective.bytes)
        setting = self.settings.get(collective) or nccl_default(
            kind, nbytes, span, self.cluster
        )
        price = self.collective(collective)
        sent = wire_bytes(kind, nbytes, span.size)
        return CollectiveLoad(
            setting.channels,
            setting.chunk_bytes,
            memory_rate(kind, sent, price.seconds),
            price.bound,
            price.resource_share,
        )
