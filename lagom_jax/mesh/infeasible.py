"""Infeasible requests: the limit that binds, and the least change that would do."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from lagom_jax.cluster import Cluster
from lagom_jax.errors import ClusterError
from lagom_jax.mesh.candidates import Asks, Candidates, Limit, candidates
from lagom_jax.mesh.frameworks import Framework
from lagom_jax.mesh.model_shape import ModelShape
from lagom_jax.mesh.sizes import REMATS, StepBatch

_MOST_HOSTS = 4096


@dataclasses.dataclass(frozen=True, slots=True)
class Remedy:
    """A change that makes a request feasible, the others left as they are."""

    what: Literal["cluster", "sequences", "remat", "micro_batch"]
    value: str


@dataclasses.dataclass(frozen=True, slots=True)
class Infeasible:
    """The answer where no mesh fits."""

    limit: Limit
    """The binding one: `memory` where some mesh divides, else what most break."""
    least_memory_bytes: int | None
    """Of the mesh that needs the least; None where none divides."""
    memory_bytes: int
    """Memory that a GPU has for a step."""
    remedies: tuple[Remedy, ...]


def infeasible(
    shape: ModelShape,
    cluster: Cluster,
    batch: StepBatch,
    framework: Framework,
    asks: Asks,
    found: Candidates,
) -> Infeasible | None:
    """Says why nothing fits, and what would; None where something does.

    Args:
        shape: The model.
        cluster: What it should be trained on.
        batch: What a step is trained on.
        framework: How the step is built.
        asks: What the user has settled.
        found: What the candidates are.

    Example:
        >>> from lagom_jax.mesh.frameworks import framework_named
        >>> from lagom_jax.mesh.model_shape import published_shape
        >>> args = (published_shape("llama-3-70b"), Cluster.parse("h100:1x8"),
        ...         StepBatch(64, 2048), framework_named("xla"), Asks())
        >>> answer = infeasible(*args, candidates(*args))
        >>> answer.limit, answer.remedies[0].value
        ('memory', 'h100:2x8')
    """
    if found.found:
        return None
    if found.least_memory is not None:
        limit: Limit = "memory"
    else:
        limit = max(found.dropped, key=lambda name: found.dropped[name])
    wanted = _Wanted(shape, cluster, batch, framework, asks)
    looked = (_remat(wanted), _micro_batch(wanted), _cluster(wanted))
    remedies = [one for one in (*looked, _sequences(wanted)) if one is not None]
    return Infeasible(
        limit,
        found.least_memory[0] if found.least_memory else None,
        int(asks.memory_fraction * cluster.gpu.memory_bytes),
        tuple(remedies),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Wanted:
    """A request; variants of it are made by `dataclasses.replace`."""

    shape: ModelShape
    cluster: Cluster
    batch: StepBatch
    framework: Framework
    asks: Asks

    def with_asks(self, **changed: Any) -> _Wanted:
        return dataclasses.replace(self, asks=dataclasses.replace(self.asks, **changed))

    @property
    def feasible(self) -> bool:
        return bool(
            candidates(
                self.shape, self.cluster, self.batch, self.framework, self.asks
            ).found
        )


def _remat(wanted: _Wanted) -> Remedy | None:
    """The remat that computes the least again."""
    for remat in REMATS:
        if remat in wanted.asks.remats:
            continue
        if wanted.with_asks(remats=(remat,)).feasible:
            return Remedy("remat", remat)
    return None


def _micro_batch(wanted: _Wanted) -> Remedy | None:
    """The largest micro batch below the one that was asked for."""
    for size in range((wanted.asks.micro_batch or 1) - 1, 0, -1):
        if wanted.with_asks(micro_batch=size).feasible:
            return Remedy("micro_batch", str(size))
    return None


def _cluster(wanted: _Wanted) -> Remedy | None:
    """The fewest more hosts of the same kind."""
    cluster = wanted.cluster
    system = cluster.name.rpartition(":")[0]
    each = cluster.gpus_per_host
    if cluster.regions > 1:
        return None
    hosts = cluster.hosts + 1
    while hosts <= max(_MOST_HOSTS, 2 * cluster.hosts):
        try:
            larger = Cluster.parse(f"{system}:{hosts}x{each}")
        except ClusterError:
            return None
        if dataclasses.replace(wanted, cluster=larger).feasible:
            return Remedy("cluster", larger.name)
        # One by one where few are enough, then by powers of two: exact counts matter
        # to those who rent few hosts.
        hosts = hosts + 1 if hosts < 16 else 2 * hosts
    return None


def _sequences(wanted: _Wanted) -> Remedy | None:
    """The nearest batch that divides."""
    batch, devices = wanted.batch, wanted.cluster.devices
    for count in dict.fromkeys(
        (
            max(1, round(batch.sequences / devices)) * devices,
            *(1 << n for n in range(batch.sequences.bit_length() + 1)),
        )
    ):
        other = dataclasses.replace(batch, sequences=count)
        if other != batch and dataclasses.replace(wanted, batch=other).feasible:
            return Remedy("sequences", str(count))
    return None
