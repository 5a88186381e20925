"""Candidate meshes of a number of devices, and the limits that drop others.

Nothing is priced here: what does not divide, leaves a host or overflows memory is
dropped.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterator
from typing import Final, Literal

from lagom_jax.cluster import Cluster
from lagom_jax.mesh.flows import expert_slices
from lagom_jax.mesh.frameworks import Framework
from lagom_jax.mesh.mesh_memory import mesh_memory
from lagom_jax.mesh.model_shape import ModelShape
from lagom_jax.mesh.sizes import AXES, REMATS, Axes, MeshSizes, Remat, StepBatch

Limit = Literal["batch", "model", "host", "memory"]
"""The limits of a mesh: sequences that do not divide over replicas and micro batches,
heads, layers or experts that do not divide over an axis, an axis that must stay where
links are fast, and memory."""
PIPELINE_FIRST: Final[Axes] = ("pipeline", *AXES[:-1])
"""Stages of a pipeline on neighbouring devices, instead of far apart."""
_MOST_MICRO_BATCH = 64
_LONG = 16384


@dataclasses.dataclass(frozen=True, slots=True)
class Asks:
    """Sizes that the user has settled, and how much memory may be used."""

    remats: tuple[Remat, ...] = REMATS
    micro_batch: int | None = None
    memory_fraction: float = 0.92
    """Of the GPU's memory."""
    simple: bool = False
    """Either data or fsdp beside the others, and the pipeline's stages nearest: what
    the zoo's steps can be built as."""


@dataclasses.dataclass(frozen=True, slots=True)
class Candidates:
    """Meshes that fit, and why others were dropped."""

    found: tuple[MeshSizes, ...]
    dropped: Counter[Limit]
    least_memory: tuple[int, MeshSizes] | None
    """The mesh that needs the least memory, whether it fits or not."""


def candidates(
    shape: ModelShape,
    cluster: Cluster,
    batch: StepBatch,
    framework: Framework,
    asks: Asks,
) -> Candidates:
    """All meshes of a cluster's devices for a model.

    Args:
        shape: The model.
        cluster: What it is trained on.
        batch: What a step is trained on.
        framework: How the step is built.
        asks: What the user has settled.

    Example:
        >>> from lagom_jax.mesh.frameworks import framework_named
        >>> from lagom_jax.mesh.model_shape import published_shape
        >>> found = candidates(published_shape("llama-3-8b"), Cluster.parse("h100:1x8"),
        ...                    StepBatch(64, 2048), framework_named("xla"), Asks())
        >>> found.dropped["memory"] > 0
        True
    """
    room = asks.memory_fraction * cluster.gpu.memory_bytes
    dropped: Counter[Limit] = Counter()
    found: list[MeshSizes] = []
    least: tuple[int, MeshSizes] | None = None
    for sizes, limit in _meshes(shape, cluster, batch, framework, asks):
        if limit is not None:
            dropped[limit] += 1
            continue
        for remat in asks.remats:
            if remat == "selective" and framework.name == "xla":
                continue
            one = dataclasses.replace(sizes, remat=remat)
            needed = mesh_memory(shape, one, batch, framework).total
            if least is None or needed < least[0]:
                least = needed, one
            if needed > room:
                dropped["memory"] += 1
                continue
            found.append(one)
            if framework.name != "xla":
                # What computes more again is slower, once this fits.
                break
    return Candidates(tuple(found), dropped, least)


@functools.lru_cache(maxsize=1 << 12)
def divisors(number: int) -> tuple[int, ...]:
    """All divisors, from small to large.

    Example:
        >>> divisors(12)
        (1, 2, 3, 4, 6, 12)
    """
    return tuple(n for n in range(1, number + 1) if number % n == 0)


def limit_of(
    shape: ModelShape, sizes: MeshSizes, cluster: Cluster, framework: Framework
) -> Limit | None:
    """The first limit that a mesh breaks, memory and batch left out."""
    tensor, near = sizes.tensor, cluster.scale_up_size
    if tensor > near or (near % tensor and tensor > 1 and cluster.devices > near):
        return "host"
    heads = shape.kv_heads if framework.looped_pipeline else shape.heads
    if heads % tensor or shape.hidden % tensor or shape.vocabulary % tensor:
        return "model"
    if shape.experts is not None and (
        shape.experts.count % sizes.expert or shape.experts.hidden % tensor
    ):
        return "model"
    parts = sizes.pipeline * sizes.interleave
    # Embedding and head may count as layers of the first and the last stage.
    more = 0 if framework.looped_pipeline else 2
    if shape.mixture_layers % parts and (shape.mixture_layers + more) % parts:
        return "model"
    if sizes.fsdp > 1:
        parts = sizes.fsdp * sizes.sequence * sizes.expert
        parts *= sizes.pipeline if framework.looped_pipeline else 1
        if shape.width % parts:
            return "model"
    return None


def _meshes(
    shape: ModelShape,
    cluster: Cluster,
    batch: StepBatch,
    framework: Framework,
    asks: Asks,
) -> Iterator[tuple[MeshSizes, Limit | None]]:
    for sizes in _cuts(shape, cluster, batch, framework, asks):
        limit = limit_of(shape, sizes, cluster, framework)
        if limit is not None:
            yield sizes, limit
            continue
        each = batch.sequences // sizes.replicas
        if each * sizes.replicas != batch.sequences:
            yield sizes, "batch"
            continue
        some = False
        slices = expert_slices(framework) if sizes.expert > 1 else 1
        for micro in _micro_batches(each, asks):
            count = each // micro
            if micro % slices:
                # Each part of a micro batch visits the experts by itself.
                continue
            looped = framework.looped_pipeline and sizes.pipeline > 1
            if looped and count % sizes.pipeline:
                continue
            if sizes.interleave > 1 and count % sizes.pipeline:
                continue
            some = True
            yield dataclasses.replace(sizes, micro_batch=micro), None
        if not some:
            yield sizes, "batch"


def _micro_batches(each: int, asks: Asks) -> Iterator[int]:
    if asks.micro_batch is not None:
        if each % asks.micro_batch == 0:
            yield asks.micro_batch
        return
    for micro in divisors(each):
        if micro <= _MOST_MICRO_BATCH and (micro & (micro - 1) == 0 or micro == each):
            yield micro


def _cuts(
    shape: ModelShape,
    cluster: Cluster,
    batch: StepBatch,
    framework: Framework,
    asks: Asks,
) -> Iterator[MeshSizes]:
    """Every way to cut the devices, whether the model divides or not."""
    devices = cluster.devices
    experts = shape.experts.count if shape.experts else 1
    for tensor in divisors(devices):
        if tensor > cluster.scale_up_size:
            break
        rest = devices // tensor
        for pipeline in divisors(rest):
            if pipeline > shape.mixture_layers:
                break
            for expert in divisors(rest // pipeline):
                if expert > experts:
                    break
                for sequence in _sequences(
                    rest // pipeline // expert, batch, framework
                ):
                    left = rest // pipeline // expert // sequence
                    yield from _finish(
                        *(tensor, pipeline, expert, sequence, left),
                        *(framework, asks, shape, cluster.scale_up_size),
                    )


def _sequences(rest: int, batch: StepBatch, framework: Framework) -> Iterator[int]:
    yield 1
    if framework.fused_attention:
        for sequence in divisors(rest)[1:]:
            if batch.length // sequence >= _LONG // 8 and batch.length >= _LONG // 2:
                yield sequence


def _finish(
    tensor: int,
    pipeline: int,
    expert: int,
    sequence: int,
    left: int,
    framework: Framework,
    asks: Asks,
    shape: ModelShape,
    near: int,
) -> Iterator[MeshSizes]:
    fsdps = _fsdps(left, tensor * sequence * expert, framework, asks, near)
    orders = (PIPELINE_FIRST,) if asks.simple else (AXES, PIPELINE_FIRST)
    interleaves = (1,)
    if pipeline > 1 and not framework.looped_pipeline:
        layers = -(-shape.mixture_layers // pipeline)
        interleaves = tuple(n for n in divisors(layers) if n in (1, 2, 4, 8))
    for fsdp in dict.fromkeys(fsdps):
        for along in (False, True) if tensor > 1 else (False,):
            for order in orders if pipeline > 1 else orders[:1]:
                for interleave in interleaves:
                    yield MeshSizes(
                        data=left // fsdp,
                        fsdp=fsdp,
                        tensor=tensor,
                        sequence=sequence,
                        pipeline=pipeline,
                        expert=expert,
                        tensor_sequence=along,
                        interleave=interleave,
                        order=order,
                    )


def _fsdps(
    left: int, inner: int, framework: Framework, asks: Asks, near: int
) -> tuple[int, ...]:
    """Parts that weights are cut into: none, all, a host, or some hosts."""
    if framework.optimizer_sharded:
        return (1,)
    if asks.simple:
        return (1, left)
    some = [
        n for hosts in (1, 4, 16) if left % (n := max(1, hosts * near // inner)) == 0
    ]
    return (1, *some, left)
