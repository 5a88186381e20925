"""The model of a cluster: what tasks cost alone, and what they do to each other."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Mapping
from typing import Final, NamedTuple

from lagom_jax.cluster import Cluster
from lagom_jax.cost.arrays import arrays_of, usual_setting
from lagom_jax.cost.between_regions import wan_price
from lagom_jax.cost.collective import CollectiveTerms
from lagom_jax.cost.compute import kernel_price
from lagom_jax.cost.constants import Constants, load_constants
from lagom_jax.cost.known import Known
from lagom_jax.cost.loads import (
    NO_LOAD,
    CollectiveLoad,
    KernelLoad,
    kernel_load,
)
from lagom_jax.cost.nccl_facts import nccl_facts
from lagom_jax.cost.prices import Price
from lagom_jax.cost.rates_of_loads import RatesOfLoads, SharedGpu
from lagom_jax.cost.span import Span, span_of, wire_bytes
from lagom_jax.cost.symmetric_kernels import Carried
from lagom_jax.cost.transports import PlacedCall
from lagom_jax.hlo.collective import Collective
from lagom_jax.hlo.symmetric_buffers import SymmetricBuffers
from lagom_jax.hlo.work import Work
from lagom_jax.plan.setting import Setting
from lagom_jax.plan.transport import CtaPolicy
from lagom_jax.program.program import Kernel

LARGE = 1 << 20
"""Bytes from which on a kernel hides a part of its launch."""


class _Placed(NamedTuple):
    """All of a collective on rings that its price depends on, but for its setting."""

    kind: str
    nbytes: float
    span: Span
    arrays: tuple[float, ...]
    one_shot: bool


class _Memory:
    """Results that hold for a model under all settings, and grows as it is asked."""

    def __init__(self, cluster: Cluster, constants: Constants) -> None:
        self._cluster, self._constants = cluster, constants
        self.kernels = Known(_work_of, self._kernel)
        self.collectives = Known(self._figures, self._collective)
        self._terms_of: dict[_Placed, CollectiveTerms] = {}
        self._under_any: dict[
            Collective, tuple[Price, CollectiveLoad] | CollectiveTerms
        ] = {}
        self.rates = RatesOfLoads(cluster.gpu, constants.sharing)

    def _kernel(self, kernel: Kernel, _: Setting | None) -> tuple[Price, KernelLoad]:
        price = kernel_price(kernel.work, self._cluster, self._constants)
        return price, kernel_load(kernel.work, price, self._cluster.gpu)

    def _figures(self, collective: Collective) -> Hashable:
        symmetric = symmetric_buffers_of(collective)
        types = collective.element_types if symmetric else ()
        return self._placed(collective), symmetric, types

    def _placed(self, collective: Collective) -> _Placed:
        return _Placed(
            collective.kind,
            float(collective.bytes),
            span_of(collective.groups, self._cluster),
            arrays_of(collective),
            collective.one_shot_kernel,
        )

    def _terms(self, collective: Collective) -> CollectiveTerms:
        placed = self._placed(collective)
        known = self._terms_of.get(placed)
        if known is None:
            known = self._terms_of[placed] = CollectiveTerms.of(
                placed.kind,
                placed.nbytes,
                placed.span,
                self._cluster,
                self._constants,
                placed.arrays,
                one_shot=placed.one_shot,
            )
        return known

    def _off_rings(
        self, collective: Collective, carried: Carried
    ) -> tuple[Price, CollectiveLoad]:
        link, seconds = self._cluster.inside, carried.seconds
        ranks = span_of(collective.groups, self._cluster).size
        sent = wire_bytes(collective.kind, float(collective.bytes), ranks)
        share = min(1.0, sent / (link.bytes_per_s * seconds))
        bound = "latency" if carried.transfer <= carried.latency else link.kind
        return Price(seconds, bound, share), CollectiveLoad(
            carried.blocks,
            # Nothing waits in a buffer between.
            0,
            carried.memory_bytes / seconds,
            bound,
            share,
            carried.transfer / seconds,
        )

    def _collective(
        self, collective: Collective, setting: Setting | None
    ) -> tuple[Price, CollectiveLoad]:
        known = self._under_any.get(collective)
        if known is None:
            known = self._under_any[collective] = self._without_setting(collective)
        if isinstance(known, CollectiveTerms):
            price = known.price(setting)
            return price, known.load(price, setting)
        return known

    def _without_setting(
        self, collective: Collective
    ) -> tuple[Price, CollectiveLoad] | CollectiveTerms:
        """Its price and load where no setting reaches it, else what they depend on."""
        over = wan_price(
            collective.kind, float(collective.bytes), collective.groups, self._cluster
        )
        if over is not None:
            return over, NO_LOAD
        carried = carried_by(collective, self._cluster, self._constants)
        if carried is not None:
            return self._off_rings(collective, carried)
        return self._terms(collective)


def carried_by(
    collective: Collective, cluster: Cluster, constants: Constants
) -> Carried | None:
    """A collective off the rings; None where it runs on channels, or not in NCCL.

    Args:
        collective: The collective.
        cluster: What it runs on.
        constants: Versions, the process's policy, and what transports take.
    """
    symmetric = symmetric_buffers_of(collective)
    if not symmetric or collective.one_shot_kernel:
        return None
    call = call_of(collective, cluster)
    if call.span.size == 1:
        return None
    return call.carried(
        symmetric, constants.cta_policy, constants.transports, constants.nccl
    )


def symmetric_buffers_of(collective: Collective) -> SymmetricBuffers:
    """The buffers of a collective that lie in symmetric memory."""
    return SymmetricBuffers(
        collective.sends_symmetric, collective.receives_symmetric, collective.one_sided
    )


def call_of(collective: Collective, cluster: Cluster) -> PlacedCall:
    """Facts that decide about a collective's transport, but for memory and policy."""
    return PlacedCall(
        collective.kind,
        float(collective.bytes),
        span_of(collective.groups, cluster),
        cluster,
        collective.element_types,
        max(1, collective.operand_count),
    )


def _work_of(kernel: Kernel) -> Work:
    return kernel.work


class CostModel:
    """Prices on a cluster, and contention, under settings of the collectives.

    A model never changes, but for remembering what it was asked for. Those that differ
    in settings only remember together.

    Example:
        >>> model = CostModel.of(Cluster.parse("h100:8x8"))
        >>> model.constants.gpu, len(model.digest)
        ('h100', 64)
    """

    def __init__(
        self,
        cluster: Cluster,
        constants: Constants,
        settings: Mapping[Collective, Setting] | None = None,
    ) -> None:
        """A model that remembers nothing yet.

        Args:
            cluster: What programs run on.
            constants: All that is known of its GPUs and links.
            settings: How some collectives are run; the others as NCCL chooses itself.
        """
        self.cluster: Final = cluster
        self.constants: Final = constants
        self.settings: Final = dict(settings or {})
        self._memory = _Memory(cluster, constants)

    @classmethod
    def of(cls, cluster: Cluster, nccl: str = "") -> CostModel:
        """The model of a cluster with the constants known for it.

        Args:
            cluster: What programs run on.
            nccl: NCCL's version, such as 2.28.9; by default that of its record.
        """
        return cls(cluster, load_constants(cluster, nccl))

    def under(self, settings: Mapping[Collective, Setting]) -> CostModel:
        """The same model with other settings for some collectives.

        What either has worked out, the other knows.
        """
        other = CostModel.__new__(CostModel)
        other.__dict__.update(self.__dict__, settings={**self.settings, **settings})
        return other

    @property
    def digest(self) -> str:
        """A hash of all constants: models with the same one say the same."""
        return self.constants.digest

    @property
    def source(self) -> str:
        """Source of the prices, in words."""
        surfaces = self.constants.surfaces
        matmuls = self.constants.kernels.matmul("bf16")
        if matmuls.calibrated and surfaces.calibrated:
            return (
                "calibrated: matmuls and collectives in a domain on published "
                "measurements (`lagom validate` says how well); other kernels, "
                "launches, contention and the network estimated"
            )
        return f"matmuls {matmuls.source}; collectives {surfaces.source}"

    def kernel(self, kernel: Kernel) -> Price:
        """The price of a kernel alone."""
        return self._memory.kernels.of(kernel)[0]

    def collective(self, collective: Collective) -> Price:
        """The price of a collective alone."""
        setting = self.settings.get(collective)
        return self._memory.collectives.of(collective, setting)[0]

    def under_setting(
        self, collective: Collective, setting: Setting
    ) -> tuple[Price, CollectiveLoad]:
        """The price and load of a collective alone, if it ran under a setting."""
        return self._memory.collectives.of(collective, setting)

    def usual(self, collective: Collective) -> Setting:
        """NCCL's own setting for a collective that runs on rings."""
        span = span_of(collective.groups, self.cluster)
        facts = nccl_facts(self.cluster, self.constants.nccl)
        return usual_setting(collective, span, facts)

    def carried(self, collective: Collective) -> Carried | None:
        """A collective off the rings, which no setting reaches; None on rings."""
        return carried_by(collective, self.cluster, self.constants)

    def with_policy(self, policy: CtaPolicy) -> CostModel:
        """The model of a process that spares SMs for something else.

        Example:
            >>> model = CostModel.of(Cluster.parse("h100:1x8"))
            >>> model.with_policy("zero").constants.cta_policy
            'zero'
        """
        if policy == self.constants.cta_policy:
            return self
        other = dataclasses.replace(self.constants, cta_policy=policy)
        return CostModel(self.cluster, other, self.settings)

    def in_table(self, collective: Collective, seconds: float) -> float:
        """Seconds of a program of one collective in the table of single programs.

        The host's launch is in them, which is no part of what the collective takes
        beside kernels: in a step the host is ahead of the GPU. And sums take longer
        there than NCCL alone.

        Args:
            collective: The collective.
            seconds: What it takes alone.
        """
        known = self.constants.surfaces
        launches = known.launches.get(collective.kind, {})
        if not launches:
            return seconds
        ranks = span_of(collective.groups, self.cluster).size
        nearest = min(launches, key=lambda ranked: abs(math.log2(int(ranked) / ranks)))
        large = collective.bytes >= LARGE
        if large:
            seconds *= known.longer.get(collective.kind, {}).get(nearest, 1.0)
        return seconds + launches[nearest][large]

    def contention(self) -> SharedGpu:
        """Contention of tasks on the cluster's GPUs."""
        return SharedGpu(self._memory.rates, self.kernel_load, self.collective_load)

    def kernel_load(self, kernel: Kernel) -> KernelLoad:
        """Load of a kernel on the GPU."""
        return self._memory.kernels.of(kernel)[1]

    def collective_load(self, collective: Collective) -> CollectiveLoad:
        """Load of a collective on the GPU."""
        setting = self.settings.get(collective)
        return self._memory.collectives.of(collective, setting)[1]
