"""The model of a cluster: what tasks cost alone, and what they do to each other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from lagom_jax.cluster import Cluster
from lagom_jax.cost.between_regions import wan_price
from lagom_jax.cost.collective import CollectiveTerms
from lagom_jax.cost.compute import kernel_price
from lagom_jax.cost.constants import Constants, load_constants
from lagom_jax.cost.known import Known
from lagom_jax.cost.loads import (
    CollectiveLoad,
    KernelLoad,
    kernel_load,
    memory_rate,
)
from lagom_jax.cost.prices import Price
from lagom_jax.cost.sharing import RatesOfLoads, SharedGpu
from lagom_jax.cost.span import span_of
from lagom_jax.hlo.collective import Collective
from lagom_jax.hlo.work import Work
from lagom_jax.plan.setting import Setting
from lagom_jax.schedule.program import Kernel

LARGE = 1 << 20
"""Bytes from which on a kernel hides a part of its launch."""
_NO_CHANNELS = CollectiveLoad(0, 0, 0.0, "", 0.0)


class _Memory:
    """What is the same for a model under all settings, and grows as it is asked."""

    def __init__(self, cluster: Cluster, constants: Constants) -> None:
        self._cluster, self._constants = cluster, constants
        self.kernels = Known(_work_of, self._kernel)
        self.collectives = Known(self._terms, self._collective)
        self._terms_of: dict[Collective, CollectiveTerms] = {}
        self.rates = RatesOfLoads(cluster.gpu, constants.sharing)

    def _kernel(self, kernel: Kernel, _: Setting | None) -> tuple[Price, KernelLoad]:
        price = kernel_price(kernel.work, self._cluster, self._constants)
        return price, kernel_load(kernel.work, price, self._cluster.gpu)

    def _terms(self, collective: Collective) -> CollectiveTerms:
        known = self._terms_of.get(collective)
        if known is None:
            known = self._terms_of[collective] = CollectiveTerms.of(
                collective.kind,
                float(collective.bytes),
                span_of(collective.groups, self._cluster),
                self._cluster,
                self._constants,
                arrays_of(collective),
                one_shot=collective.one_shot_kernel,
            )
        return known

    def _collective(
        self, collective: Collective, setting: Setting | None
    ) -> tuple[Price, CollectiveLoad]:
        over = wan_price(
            collective.kind, float(collective.bytes), collective.groups, self._cluster
        )
        if over is not None:
            return over, _NO_CHANNELS
        terms = self._terms(collective)
        price = terms.price(setting)
        if terms.usual is None:
            return price, _NO_CHANNELS
        used = setting or terms.usual
        passes = self._constants.sharing.passes(collective.kind, used)
        sent = terms.sent_bytes(used)
        return price, CollectiveLoad(
            used.channels,
            used.chunk_bytes,
            memory_rate(sent, price.seconds, passes),
            price.bound,
            price.resource_share,
            terms.busy(used),
            collective.kind == "all-reduce" and used.protocol == "simple",
        )


def arrays_of(collective: Collective) -> tuple[float, ...]:
    """Bytes of each array that a collective moves, on the larger side."""
    given = [float(nbytes) for _, nbytes in collective.operands]
    more = collective.bytes / sum(given) if sum(given) else 1.0
    return tuple(nbytes * more for nbytes in given)


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
        """Where the prices come from, in words."""
        surfaces = self.constants.surfaces
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
        return self._memory.kernels.of(kernel)[0]

    def collective(self, collective: Collective) -> Price:
        """The price of a collective alone."""
        setting = self.settings.get(collective)
        return self._memory.collectives.of(collective, setting)[0]

    def launch_in_table(self, collective: Collective) -> float:
        """Seconds of the host's launch in the time of a program of one collective.

        It is no part of what the collective takes beside kernels: in a step the host is
        ahead of the GPU.
        """
        launches = self.constants.surfaces.launches.get(collective.kind, {})
        if not launches:
            return 0.0
        ranks = span_of(collective.groups, self.cluster).size
        nearest = min(launches, key=lambda known: abs(math.log2(int(known) / ranks)))
        return launches[nearest][collective.bytes >= LARGE]

    def contention(self) -> SharedGpu:
        """What tasks do to each other on the cluster's GPUs."""
        return SharedGpu(self._memory.rates, self.kernel_load, self.collective_load)

    def kernel_load(self, kernel: Kernel) -> KernelLoad:
        """What a kernel needs of the GPU."""
        return self._memory.kernels.of(kernel)[1]

    def collective_load(self, collective: Collective) -> CollectiveLoad:
        """What a collective takes of the GPU."""
        setting = self.settings.get(collective)
        return self._memory.collectives.of(collective, setting)[1]
