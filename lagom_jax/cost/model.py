"""The model of a cluster: what tasks cost alone, and what they do to each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from lagom_jax.cluster import Cluster
from lagom_jax.cost.collective import CollectiveTerms
from lagom_jax.cost.compute import kernel_price
from lagom_jax.cost.constants import Constants, load_constants
from lagom_jax.cost.loads import (
    CollectiveLoad,
    KernelLoad,
    kernel_load,
    memory_rate,
)
from lagom_jax.cost.prices import Price
from lagom_jax.cost.setting import Setting
from lagom_jax.cost.sharing import SharedGpu, load_sharing_constants
from lagom_jax.cost.span import span_of
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
    _terms: dict[Collective, CollectiveTerms] = dataclasses.field(
        default_factory=dict[Collective, CollectiveTerms], repr=False, compare=False
    )

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
        return self._terms_of(collective).price(self.settings.get(collective))

    def _terms_of(self, collective: Collective) -> CollectiveTerms:
        known = self._terms.get(collective)
        if known is None:
            known = self._terms[collective] = CollectiveTerms.of(
                collective.kind,
                float(collective.bytes),
                span_of(collective.groups, self.cluster),
                self.cluster,
                self.constants,
                collective.operand_count,
                one_shot=collective.one_shot_kernel,
            )
        return known

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
        terms = self._terms_of(collective)
        if terms.usual is None:
            return _NO_CHANNELS
        setting = self.settings.get(collective) or terms.usual
        price = terms.price(setting)
        return CollectiveLoad(
            setting.channels,
            setting.chunk_bytes,
            memory_rate(collective.kind, terms.sent_bytes, price.seconds),
            price.bound,
            price.resource_share,
        )
