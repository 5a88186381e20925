"""Seconds of kernels and collectives of a mesh, asked of one model of a cluster."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from lagom_jax.cost.between_regions import wan_price
from lagom_jax.cost.collective import CollectiveTerms
from lagom_jax.cost.compute import kernel_price
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.span import Span
from lagom_jax.hlo.work import Work
from lagom_jax.mesh.flows import Flow
from lagom_jax.mesh.sizes import Axes, MeshSizes

_POINT = "collective-permute"


class MeshPrices:
    """A model's prices, kept: meshes ask for the same ones over and over.

    Example:
        >>> from lagom_jax.cluster import Cluster
        >>> prices = MeshPrices(CostModel.of(Cluster.parse("h100:2x8")))
        >>> sizes = MeshSizes(fsdp=2, tensor=8)
        >>> near = prices.collective("all-reduce", 1 << 28, ("tensor",), sizes)
        >>> near < prices.collective("all-reduce", 1 << 28, ("fsdp",), sizes)
        True
    """

    def __init__(self, model: CostModel) -> None:
        """Prices by one model."""
        self.model = model
        self.cluster = model.cluster
        self.layers: dict[Hashable, Any] = {}
        """Kernels of layers, by what they follow from."""
        self._kernels: dict[Work, float] = {}
        self._collectives: dict[tuple[str, int, Span], float] = {}

    def kernel(self, work: Work) -> float:
        """Seconds of a kernel alone."""
        known = self._kernels.get(work)
        if known is None:
            price = kernel_price(work, self.cluster, self.model.constants)
            known = self._kernels[work] = price.seconds
        return known

    def kernels(self, works: Iterable[Work]) -> float:
        """Seconds of kernels one after the other."""
        return sum(self.kernel(work) for work in works)

    def collective(self, kind: str, nbytes: int, axes: Axes, sizes: MeshSizes) -> float:
        """Seconds of a collective alone, all its groups at the same time."""
        pairs = kind == _POINT
        if self.cluster.wan is not None:
            groups = sizes.pairs(axes[0]) if pairs else sizes.groups(axes)
            over = wan_price(kind, float(nbytes), groups, self.cluster)
            if over is not None:
                return over.seconds
        span = sizes.span(axes, self.cluster, pairs=pairs)
        key = (kind, nbytes, span)
        known = self._collectives.get(key)
        if known is None:
            terms = CollectiveTerms.of(
                kind, float(nbytes), span, self.cluster, self.model.constants
            )
            known = self._collectives[key] = terms.price().seconds
        return known

    def flow(self, flow: Flow, sizes: MeshSizes) -> float:
        """Seconds of one execution of a flow."""
        return self.collective(flow.kind, flow.nbytes, flow.axes, sizes)
