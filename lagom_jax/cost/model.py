"""The model of a cluster: what tasks cost alone, and what they do to each other."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

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
from lagom_jax.cost.sharing import RatesOfLoads, SharedGpu, load_sharing_constants
from lagom_jax.cost.span import span_of
from lagom_jax.cost.surface import load_surfaces
from lagom_jax.hlo.collective import Collective
from lagom_jax.hlo.work import Work
from lagom_jax.plan.setting import Setting
from lagom_jax.schedule.program import Kernel

_NO_CHANNELS = CollectiveLoad(0, 0, 0.0, "", 0.0)


class _Memory:
    """What is the same for a model under all settings, and grows as it is asked."""

    def __init__(self, cluster: Cluster, constants: Constants) -> None:
        self._cluster, self._constants = cluster, constants
        gpu = cluster.gpu
        self.kernels = Known(_work_of, self._kernel)
        self.collectives = Known(self._terms, self._collective)
        self._terms_of: dict[Collective, CollectiveTerms] = {}
        self._sharing = load_sharing_constants(gpu)
        self.rates = RatesOfLoads(gpu, self._sharing)

    def is_of(self, cluster: Cluster, constants: Constants) -> bool:
        """Whether it was made for these."""
        return self._cluster is cluster and self._constants is constants

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
                collective.operand_count,
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
        used = setting or terms.usual
        if used is None or terms.usual is None:
            return price, _NO_CHANNELS
        return price, CollectiveLoad(
            used.channels,
            used.chunk_bytes,
            memory_rate(
                terms.sent_bytes, price.seconds, self._sharing.passes(collective.kind)
            ),
            price.bound,
            price.resource_share,
        )


def _work_of(kernel: Kernel) -> Work:
    return kernel.work


def _plain(value: object) -> object:
    """The value as JSON has it."""
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return {field.name: _plain(getattr(value, field.name)) for field in fields}
    if isinstance(value, Mapping):
        items = cast("Mapping[str, object]", value).items()
        return {str(name): _plain(item) for name, item in items}
    if isinstance(value, np.ndarray):
        return cast("list[Any]", value.tolist())
    if isinstance(value, tuple | list):
        return [_plain(item) for item in cast("list[object]", value)]
    return value


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
    _memory: _Memory | None = dataclasses.field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Forgets what another cluster's model, or other constants, worked out."""
        known = self._memory
        if known is None or not known.is_of(self.cluster, self.constants):
            object.__setattr__(self, "_memory", _Memory(self.cluster, self.constants))

    @property
    def _known(self) -> _Memory:
        assert self._memory is not None  # __post_init__ saw to it
        return self._memory

    @classmethod
    def of(cls, cluster: Cluster) -> CostModel:
        """The model of a cluster with the constants known for its GPU."""
        return cls(cluster, load_constants(cluster.gpu.name))

    def under(self, settings: Mapping[Collective, Setting]) -> CostModel:
        """The same model with other settings for some collectives.

        What either has worked out, the other knows.
        """
        return dataclasses.replace(self, settings={**self.settings, **settings})

    @property
    def digest(self) -> str:
        """A hash of every constant: the same in all processes, another for others."""
        gpu = self.cluster.gpu
        parts = (self.constants, load_sharing_constants(gpu), load_surfaces(gpu.name))
        text = json.dumps([_plain(part) for part in parts], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

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
        return self._known.kernels.of(kernel)[0]

    def collective(self, collective: Collective) -> Price:
        """The price of a collective alone."""
        setting = self.settings.get(collective)
        return self._known.collectives.of(collective, setting)[0]

    def contention(self) -> SharedGpu:
        """What tasks do to each other on the cluster's GPUs."""
        return SharedGpu(self._known.rates, self.kernel_load, self.collective_load)

    def kernel_load(self, kernel: Kernel) -> KernelLoad:
        """What a kernel needs of the GPU."""
        return self._known.kernels.of(kernel)[1]

    def collective_load(self, collective: Collective) -> CollectiveLoad:
        """What a collective takes of the GPU."""
        setting = self.settings.get(collective)
        return self._known.collectives.of(collective, setting)[1]
