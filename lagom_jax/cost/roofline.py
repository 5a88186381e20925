"""Prices of kernels by rooflines, of collectives by their calibrated surfaces."""

from __future__ import annotations

import dataclasses

from lagom_jax.cluster import Cluster
from lagom_jax.cost.collective import collective_price
from lagom_jax.cost.compute import kernel_price
from lagom_jax.cost.constants import Constants, load_constants
from lagom_jax.cost.prices import Price
from lagom_jax.cost.surface import load_surfaces
from lagom_jax.hlo.collective import Collective
from lagom_jax.schedule.program import Kernel


@dataclasses.dataclass(frozen=True, slots=True)
class Roofline:
    """Prices on a cluster, each task alone.

    Example:
        >>> from lagom_jax.cluster import Cluster
        >>> Roofline.of(Cluster.parse("h100:8x8")).constants.gpu
        'h100'
    """

    cluster: Cluster
    constants: Constants

    @classmethod
    def of(cls, cluster: Cluster) -> Roofline:
        """The prices of a cluster with the constants known for its GPU."""
        return cls(cluster, load_constants(cluster.gpu.name))

    @property
    def source(self) -> str:
        """Where the prices come from, in words."""
        word = "calibrated" if self.constants.calibrated else "estimated"
        surfaces = load_surfaces(self.cluster.gpu.name)
        text = f"{word}: {self.constants.source}; collectives {surfaces.source}"
        if self.cluster.devices > self.cluster.scale_up_size:
            text += "; between domains estimated"
        return text

    def kernel(self, kernel: Kernel) -> Price:
        """The price of a kernel alone."""
        return kernel_price(kernel.work, self.cluster, self.constants)

    def collective(self, collective: Collective) -> Price:
        """The price of a collective alone."""
        return collective_price(collective, self.cluster, self.constants)
