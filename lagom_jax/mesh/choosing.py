"""The choice of a mesh: bound, price, compare, and say why the others lose."""

from __future__ import annotations

import dataclasses
import heapq
import time
from collections.abc import Sequence
from typing import Final

from lagom_jax.cluster import Cluster
from lagom_jax.cost.ensemble import Ensemble
from lagom_jax.mesh.candidates import Asks, Candidates, candidates
from lagom_jax.mesh.estimate import MeshEstimate, estimate, kernel_bound
from lagom_jax.mesh.flows import Reason
from lagom_jax.mesh.frameworks import Framework, framework_named
from lagom_jax.mesh.mesh_prices import MeshPrices
from lagom_jax.mesh.model_shape import MeshError, ModelShape, read_shape
from lagom_jax.mesh.sizes import MeshSizes, StepBatch
from lagom_jax.plan.interval import Interval
from lagom_jax.scheduled import cluster_named

_KEPT: Final = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Loss:
    """The reason for which a mesh is slower than the best one."""

    part: str
    """`compute`, `bubble`, or the reason of a flow that nothing hides."""
    seconds: float
    """By which that part is longer."""


@dataclasses.dataclass(frozen=True, slots=True)
class MeshChoice:
    """One mesh with what is predicted of it."""

    sizes: MeshSizes
    estimate: MeshEstimate
    step_low: float
    step_high: float
    """Most models of the ensemble, and even routing as well as uneven, lie between."""
    tokens_per_second: float
    mfu: float
    """Operations that nothing recomputes, over the peak of all GPUs."""
    loses_by: Loss | None = None
    """The largest part of the difference to the best; None for the best."""
    verified_step_seconds: float | None = None
    """Of the compiled step, replayed; None where it was not compiled."""
    verified_memory_bytes: int | None = None
    refused: str = ""
    """The compiler's or the factory's reason not to build it; empty if none."""

    @property
    def step_seconds(self) -> float:
        """Predicted, in closed form."""
        return self.estimate.seconds


@dataclasses.dataclass(frozen=True, slots=True)
class MeshAdvice:
    """The meshes of a model on a cluster, best first."""

    shape: ModelShape
    cluster: Cluster
    batch: StepBatch
    framework: Framework
    choices: tuple[MeshChoice, ...]
    candidates: Candidates
    evaluated: int
    """Meshes that were priced; bounds dropped the others."""
    seconds: float
    """Time that the choice took."""

    @property
    def best(self) -> MeshChoice:
        """The first choice.

        Raises:
            MeshError: No mesh fits.
        """
        if not self.choices:
            raise MeshError(f"no mesh of {self.shape.name} fits {self.cluster.name}")
        return self.choices[0]


def choose(
    model: str | ModelShape,
    *,
    cluster: str | Cluster,
    tokens: int,
    sequence: int,
    framework: str | Framework = "xla",
    asks: Asks | None = None,
    ensemble: Ensemble | None = None,
    keep: int = _KEPT,
) -> MeshAdvice:
    """Chooses the mesh to train a model on, without compiling anything.

    Args:
        model: A published model, a JSON file with dimensions, or the dimensions.
        cluster: Such as `"h100:8x8"`.
        tokens: In a step, over all devices.
        sequence: Tokens in a sequence.
        framework: How the step is built; one of `frameworks()`.
        asks: What is settled already.
        ensemble: Models for the choice and its interval; by default those of the
            cluster.
        keep: Choices to return.

    Raises:
        MeshError: Tokens are no whole number of sequences, or a name is unknown.
        ClusterError: No such cluster.

    Example:
        >>> found = choose("llama-3-8b", cluster="h100:2x8", tokens=65536,
        ...                sequence=2048)
        >>> found.best.sizes.devices
        16
    """
    began = time.perf_counter()
    shape = read_shape(model) if isinstance(model, str) else model
    where = cluster_named(cluster)
    how = framework_named(framework) if isinstance(framework, str) else framework
    batch = batch_of(tokens, sequence)
    found = candidates(shape, where, batch, how, asks or Asks())
    ensemble = ensemble or Ensemble.of(where)
    prices = MeshPrices(ensemble.likeliest)
    priced, evaluated = _priced(shape, batch, how, prices, found, keep)
    others = [MeshPrices(model) for model in ensemble.members]
    choices = _compared(shape, batch, how, where, priced, others)
    return MeshAdvice(
        *(shape, where, batch, how, choices, found),
        *(evaluated, time.perf_counter() - began),
    )


def batch_of(tokens: int, sequence: int) -> StepBatch:
    """The batch of a step.

    Raises:
        MeshError: Tokens are no whole number of sequences.

    Example:
        >>> batch_of(8192, 2048).sequences
        4
    """
    if sequence < 1 or tokens < sequence or tokens % sequence:
        raise MeshError(
            f"{tokens} tokens are no whole number of sequences of {sequence}: take "
            f"{max(1, round(tokens / max(1, sequence))) * max(1, sequence)}"
        )
    return StepBatch(tokens // sequence, sequence)


def _priced(
    shape: ModelShape,
    batch: StepBatch,
    framework: Framework,
    prices: MeshPrices,
    found: Candidates,
    keep: int,
) -> tuple[list[tuple[MeshSizes, MeshEstimate]], int]:
    """The best meshes with their estimates, and how many were priced.

    Bounds rise, so that once one is above the worst of those kept, no later mesh can
    be among them.
    """
    kept: list[tuple[float, int, MeshSizes, MeshEstimate]] = []
    evaluated = 0
    bounds = [
        (kernel_bound(shape, sizes, batch, framework, prices), place, sizes)
        for place, sizes in enumerate(found.found)
    ]
    for bound, _, sizes in sorted(bounds, key=lambda item: item[:2]):
        if len(kept) == keep and bound > -kept[0][0]:
            break
        one = estimate(shape, sizes, batch, framework, prices)
        evaluated += 1
        item = (-one.seconds, -evaluated, sizes, one)
        if len(kept) < keep:
            heapq.heappush(kept, item)
        else:
            heapq.heappushpop(kept, item)
    kept.sort(key=lambda item: (-item[0], -item[1]))
    return [(sizes, one) for _, _, sizes, one in kept], evaluated


def _compared(
    shape: ModelShape,
    batch: StepBatch,
    framework: Framework,
    cluster: Cluster,
    priced: Sequence[tuple[MeshSizes, MeshEstimate]],
    others: Sequence[MeshPrices],
) -> tuple[MeshChoice, ...]:
    peak = cluster.gpu.dense_flops_per_s["bf16"] * cluster.devices
    flops = shape.flops(batch.tokens, batch.length)
    choices: list[MeshChoice] = []
    for sizes, one in priced:
        seen = Interval.of(
            one.seconds,
            [
                estimate(shape, sizes, batch, framework, prices).seconds
                for prices in others
            ],
        )
        routed = _routing(shape, framework) * one.exposed.get(_ROUTED, 0.0)
        choices.append(
            MeshChoice(
                sizes,
                one,
                seen.low,
                seen.high + routed,
                batch.tokens / one.seconds,
                flops / one.seconds / peak,
                _loss(priced[0][1], one) if choices else None,
            )
        )
    return tuple(choices)


_ROUTED: Final[Reason] = "tokens to experts and back"


def _routing(shape: ModelShape, framework: Framework) -> float:
    """The part by which the busiest expert's traffic may exceed the even share.

    With slots what travels is fixed; without, the published capacity factor says how
    uneven routing its authors provided for.
    """
    if shape.experts is None or framework.name == "xla":
        return 0.0
    return shape.experts.capacity_factor - 1


def _loss(best: MeshEstimate, other: MeshEstimate) -> Loss:
    parts = {
        "compute": other.compute_seconds - best.compute_seconds,
        "bubble": other.bubble_seconds - best.bubble_seconds,
        "contention": other.contention_seconds - best.contention_seconds,
    }
    for reason in {*best.exposed, *other.exposed}:
        parts[reason] = other.exposed.get(reason, 0.0) - best.exposed.get(reason, 0.0)
    part = max(sorted(parts), key=lambda name: parts[name])
    return Loss(part, parts[part])
