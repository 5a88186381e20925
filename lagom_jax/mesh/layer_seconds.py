"""Seconds of a layer's kernels, and of the stages that they make up."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Hashable

from lagom_jax.hlo.work import Work
from lagom_jax.mesh.flows import layers_here
from lagom_jax.mesh.frameworks import Framework
from lagom_jax.mesh.layer_work import ends_work, layer_work, weights_cast
from lagom_jax.mesh.mesh_prices import MeshPrices
from lagom_jax.mesh.model_shape import ModelShape
from lagom_jax.mesh.sizes import MeshSizes, StepBatch
from lagom_jax.mesh.windows import Windows


@dataclasses.dataclass(frozen=True, slots=True)
class LayerSeconds:
    """Seconds of kernels for one micro batch: of one layer, and of the ends."""

    windows: Windows
    """Of the forward pass."""
    forward: float
    backward: float
    """With what is computed again."""
    again: Windows
    """Of the backward pass, what is computed again."""
    computed_again: float
    """All of it."""
    products: float
    """Of the backward pass."""
    aside: float
    """Of the backward pass, what nothing waits for."""
    fed: float
    """The feed-forward, forward."""
    fed_back: float
    """The feed-forward, backward, but for its weights' gradients."""
    cast: float
    """Of weights, once."""
    ends: float
    works: tuple[tuple[Work, int], ...]
    """Of all kernels of a layer: each with how many there are of it."""
    key: Hashable
    """The sizes and dimensions that they follow from."""


def layer_seconds(
    shape: ModelShape,
    sizes: MeshSizes,
    batch: StepBatch,
    framework: Framework,
    prices: MeshPrices,
) -> LayerSeconds:
    """Seconds of a layer's kernels on one micro batch; kept with the prices.

    Args:
        shape: The model.
        sizes: The mesh.
        batch: What a step is trained on.
        framework: How the step is built.
        prices: By which model of which cluster.

    Example:
        >>> from lagom_jax.cluster import Cluster
        >>> from lagom_jax.cost.model import CostModel
        >>> from lagom_jax.mesh.frameworks import framework_named
        >>> from lagom_jax.mesh.model_shape import published_shape
        >>> prices = MeshPrices(CostModel.of(Cluster.parse("h100:2x8")))
        >>> found = layer_seconds(published_shape("llama-3-8b"), MeshSizes(fsdp=16),
        ...                       StepBatch(16, 2048), framework_named("xla"), prices)
        >>> found.backward > 2 * found.forward
        True
    """
    framework = framework.on(generation_of(prices))
    key = (
        *(shape, framework, batch.length, batch.products, sizes.tensor, sizes.sequence),
        *(sizes.expert, sizes.micro_batch, sizes.remat, sizes.tensor_sequence),
        *(sizes.pipeline > 1, sizes.sharded),
    )
    known = prices.layers.get(key)
    if known is None:
        known = prices.layers[key] = _priced_layer(
            shape, sizes, batch, framework, prices, key
        )
    return known


def generation_of(prices: MeshPrices) -> int:
    """Of the cluster's GPUs, as in compute capability 9.0."""
    return int(prices.cluster.gpu.compute_capability.partition(".")[0])


def _priced_layer(
    shape: ModelShape,
    sizes: MeshSizes,
    batch: StepBatch,
    framework: Framework,
    prices: MeshPrices,
    key: Hashable,
) -> LayerSeconds:
    generation = generation_of(prices)
    work = layer_work(shape, sizes, batch, framework, generation)
    ends = prices.kernels(ends_work(shape, sizes, batch, framework))
    if shape.dense_layers:
        dense = layer_work(shape, sizes, batch, framework, generation, dense=True)
        every = (*dense.forward, *dense.backward, *dense.again)
        ends += shape.dense_layers * prices.kernels(every)
    seconds = prices.kernels
    around, projecting = seconds(work.around), seconds(work.projecting)
    # Half of what surrounds products comes before the feed-forward's last.
    feeding = seconds(work.feeding) + around / 2
    again = seconds(work.again)
    return LayerSeconds(
        windows=Windows(projecting, seconds(work.attending), feeding),
        forward=seconds(work.forward),
        backward=seconds(work.backward) + again,
        again=Windows(projecting, seconds(work.attending_again), feeding),
        computed_again=again,
        products=seconds(one for one in work.backward if one.matmuls),
        aside=seconds(work.aside),
        fed=feeding + seconds(work.leaving) + around / 2,
        fed_back=seconds(work.fed_back) + feeding + around,
        cast=prices.kernel(weights_cast(shape, sizes)),
        ends=ends,
        works=tuple(Counter((*work.forward, *work.backward, *work.again)).items()),
        key=key,
    )


def stage_seconds(
    kernels: LayerSeconds, shape: ModelShape, sizes: MeshSizes, framework: Framework
) -> tuple[float, float]:
    """Of one micro batch on the slowest stage, and of all bubbles."""
    layers = layers_here(shape, sizes)
    stage = layers * (kernels.forward + kernels.backward)
    stages = sizes.pipeline
    if framework.looped_pipeline:
        return stage + kernels.ends / stages, (stages - 1) * stage
    # The last stage has the head, and the others wait for it; where layers do not
    # divide, it has one less.
    spared = layers * stages > shape.mixture_layers
    last = stage * (1 - spared / layers) + kernels.ends
    return max(stage, last), filling(sizes) * (stage + kernels.ends / stages)


def filling(sizes: MeshSizes) -> float:
    """Turns of a stage, forward and backward, in which a pipeline fills and drains."""
    return (sizes.pipeline - 1) / sizes.interleave
