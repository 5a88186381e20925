"""Seconds of kernels and collectives of a mesh, asked of one model of a cluster."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, TypeAlias

from lagom_jax.cost.between_regions import wan_price
from lagom_jax.cost.collective import CollectiveTerms
from lagom_jax.cost.compute import kernel_price
from lagom_jax.cost.loads import KernelLoad, kernel_load
from lagom_jax.cost.model import CostModel
from lagom_jax.cost.prices import Price
from lagom_jax.cost.sharing import SharedWith
from lagom_jax.cost.span import Span
from lagom_jax.hlo.work import Work
from lagom_jax.mesh.flows import Flow
from lagom_jax.mesh.sizes import Axes, MeshSizes

_POINT = "collective-permute"
Arrays: TypeAlias = tuple[float, ...]


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
        self._kernels: dict[Work, KernelLoad] = {}
        self._collectives: dict[tuple[str, int, Span, Arrays], float] = {}
        self._slowdowns: dict[tuple[Hashable, str, int, Span], float] = {}

    def kernel(self, work: Work) -> float:
        """Seconds of a kernel alone."""
        return self._load(work).seconds

    def _load(self, work: Work) -> KernelLoad:
        known = self._kernels.get(work)
        if known is None:
            price = kernel_price(work, self.cluster, self.model.constants)
            known = self._kernels[work] = kernel_load(work, price, self.cluster.gpu)
        return known

    def kernels(self, works: Iterable[Work]) -> float:
        """Seconds of kernels one after the other."""
        return sum(self.kernel(work) for work in works)

    def collective(
        self,
        kind: str,
        nbytes: int,
        axes: Axes,
        sizes: MeshSizes,
        arrays: Arrays = (),
    ) -> float:
        """Seconds of a collective alone, all its groups at the same time.

        Args:
            kind: As HLO spells it.
            nbytes: Of its larger side.
            axes: The axes whose devices take part.
            sizes: The mesh.
            arrays: Bytes of each array, where several are combined.
        """
        over = self._between_regions(kind, nbytes, axes, sizes)
        if over is not None:
            return over.seconds
        span = sizes.span(axes, self.cluster, pairs=kind == _POINT)
        key = (kind, nbytes, span, arrays)
        known = self._collectives.get(key)
        if known is None:
            terms = self._terms(kind, nbytes, span, arrays)
            known = self._collectives[key] = terms.price().seconds
        return known

    def _between_regions(
        self, kind: str, nbytes: int, axes: Axes, sizes: MeshSizes
    ) -> Price | None:
        if self.cluster.wan is None:
            return None
        groups = sizes.pairs(axes[0]) if kind == _POINT else sizes.groups(axes)
        return wan_price(kind, float(nbytes), groups, self.cluster)

    def _terms(
        self, kind: str, nbytes: int, span: Span, arrays: Arrays = ()
    ) -> CollectiveTerms:
        return CollectiveTerms.of(
            kind, float(nbytes), span, self.cluster, self.model.constants, arrays
        )

    def slowdown(
        self,
        works: Iterable[tuple[Work, int]],
        key: Hashable,
        kind: str,
        nbytes: int,
        axes: Axes,
        sizes: MeshSizes,
    ) -> float:
        """Slowdown of kernels, one after the other, beside a collective.

        Args:
            works: Of the kernels, and how many there are of each.
            key: What they follow from.
            kind: Of the collective, as HLO spells it.
            nbytes: Of its larger side.
            axes: The axes whose devices take part.
            sizes: The mesh.
        """
        span = sizes.span(axes, self.cluster, pairs=kind == _POINT)
        place = (key, kind, nbytes, span)
        known = self._slowdowns.get(place)
        if known is None and self._between_regions(kind, nbytes, axes, sizes):
            known = self._slowdowns[place] = 1.0
        if known is None:
            terms = self._terms(kind, nbytes, span)
            load = terms.load(terms.price())
            taken = SharedWith([load], self.cluster.gpu, self.model.constants.sharing)
            alone = beside = 0.0
            for work, count in works:
                kernel = self._load(work)
                seconds = count * kernel.seconds
                alone += seconds
                beside += seconds * taken.of(kernel)
            known = self._slowdowns[place] = beside / alone if alone else 1.0
        return known

    def flow(self, flow: Flow, sizes: MeshSizes) -> float:
        """Seconds of one execution of a flow."""
        return self.collective(flow.kind, flow.nbytes, flow.axes, sizes)
