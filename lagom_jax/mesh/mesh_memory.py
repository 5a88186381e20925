"""Memory of the fullest device: state, kept activations, and what one layer needs."""

from __future__ import annotations

import dataclasses
from typing import Final

from lagom_jax.mesh.flows import (
    COMPUTE_BYTES,
    layers_here,
    micro_tokens,
    slot_bytes,
    turns,
)
from lagom_jax.mesh.frameworks import Framework
from lagom_jax.mesh.layer_work import expert_weights, weights_here
from lagom_jax.mesh.model_shape import ModelShape
from lagom_jax.mesh.sizes import MeshSizes, StepBatch

_OPERAND_BYTES: Final = {"f8e4m3fn": 1.0, "f4e2m1fn": 0.5}
"""Of an element that narrow products read; others read bfloat16."""


@dataclasses.dataclass(frozen=True, slots=True)
class MeshMemory:
    """Bytes that the fullest device needs, in parts."""

    state: float
    """Weights, gradients and the optimizer."""
    kept: float
    """Activations from the forward pass to the backward pass."""
    working: float
    """Of one layer or of the head while it is computed, and gathered weights."""
    reserved: float
    """By the runtime."""

    @property
    def total(self) -> int:
        """All of them."""
        return round(self.state + self.kept + self.working + self.reserved)


def held_weights(
    shape: ModelShape, sizes: MeshSizes, framework: Framework
) -> tuple[float, float]:
    """Weights that a device keeps, and those whose optimizer state it keeps."""
    inner, outer = weights_here(shape, sizes)
    if sizes.pipeline > 1 and not framework.looped_pipeline and not shape.tied:
        outer /= 2
    kept = inner + outer
    if sizes.sharded:
        alike = sizes.fsdp * sizes.sequence
        if framework.looped_pipeline:
            outer /= sizes.pipeline
        experts = _expert_weights(shape, sizes)
        kept = ((inner - experts) + outer) / (alike * sizes.expert) + experts / alike
    states = kept
    if framework.optimizer_sharded and not sizes.sharded:
        states = kept / (sizes.data * sizes.sequence)
    return kept, states


def mesh_memory(
    shape: ModelShape, sizes: MeshSizes, batch: StepBatch, framework: Framework
) -> MeshMemory:
    """Memory that the fullest device needs in a step.

    Args:
        shape: The model.
        sizes: The mesh.
        batch: What a step is trained on.
        framework: How the step is built.

    Example:
        >>> from lagom_jax.mesh.frameworks import framework_named
        >>> from lagom_jax.mesh.model_shape import published_shape
        >>> args = StepBatch(32, 2048), framework_named("xla")
        >>> shape = published_shape("llama-3-8b")
        >>> one, cut = (mesh_memory(shape, sizes, *args).state / 1e9
        ...             for sizes in (MeshSizes(data=16), MeshSizes(fsdp=16)))
        >>> round(one), round(cut)
        (128, 8)
    """
    kept, states = held_weights(shape, sizes, framework)
    state = kept * framework.weight_bytes + states * framework.optimizer_bytes
    tokens = micro_tokens(sizes, batch)
    layer = _layer_bytes(shape, sizes, batch, framework)
    layers = layers_here(shape, sizes) + shape.dense_layers
    edge = tokens * shape.width * COMPUTE_BYTES
    edge /= sizes.tensor if sizes.tensor_sequence else 1
    each = {"none": layer, "full": edge}.get(sizes.remat)
    if each is None:
        scores = _score_bytes(shape, sizes, batch, framework)
        each = max(edge, layer - scores)
        if framework.recomputes == "feed-forward":
            inner = (shape.width + 2 * shape.kv_width) / sizes.tensor
            each = edge + tokens * inner * COMPUTE_BYTES
    exchanged = 0.0
    if sizes.remat == "full" and framework.name == "xla":
        # What came over an axis is kept: sending it again costs more. The last sum of
        # a layer is in no gradient.
        sums = 1 if shape.parallel_block else 2
        each += (sums - 1) * edge if sizes.tensor > 1 else 0.0
        if sizes.expert > 1:
            exchanged = 2 * slot_bytes(shape, sizes, batch, framework)
    flights = _flights(sizes, batch, framework)
    activations = flights * (layers * each + layers_here(shape, sizes) * exchanged)
    working = _working(shape, sizes, tokens, layer, framework)
    if sizes.pipeline == 1:
        # There and back for each half of a batch, put into another order one by one.
        working += layers * exchanged / 4
    if framework.looped_pipeline and sizes.pipeline > 1:
        activations += 4 * (batch.micro_batches(sizes) + sizes.pipeline) * edge
        inner, _ = weights_here(shape, sizes)
        # In float32 a turn's gradients, added to those of the turns before; weights
        # that are cut are brought together once for all turns, and so are the sums.
        working += inner * (12 if sizes.sharded else 4)
    return MeshMemory(state, activations, working, framework.reserved_bytes)


def _flights(sizes: MeshSizes, batch: StepBatch, framework: Framework) -> float:
    """Micro batches whose activations a stage keeps at a time."""
    count = batch.micro_batches(sizes)
    if sizes.pipeline == 1:
        return 1
    if framework.looped_pipeline:
        return turns(sizes, batch, framework)
    more = 1 + (sizes.pipeline - 1) / (sizes.pipeline * sizes.interleave)
    most = sizes.pipeline * (more if sizes.interleave > 1 else 1)
    return min(count, most)


def _layer_bytes(
    shape: ModelShape, sizes: MeshSizes, batch: StepBatch, framework: Framework
) -> float:
    """Everything of a layer that its gradients are found with."""
    tokens, cut = micro_tokens(sizes, batch), sizes.tensor
    outside = 10 if not framework.fused_norms else 8
    # What products read is kept as they read it; attention's output twice, then.
    operand = _OPERAND_BYTES.get(batch.products, COMPUTE_BYTES)
    outside -= 2 * (COMPUTE_BYTES - operand)
    hidden = float(shape.hidden)
    if shape.experts is not None:
        share = shape.experts.capacity_factor if framework.name == "xla" else 1.0
        hidden = shape.experts.top_k * share * shape.experts.hidden
        hidden += shape.experts.shared * shape.experts.hidden
        hidden += 2 * shape.experts.top_k * share * shape.width * cut / 3
    inside = 4 * shape.width + 4 * shape.kv_width
    inside += operand % COMPUTE_BYTES * shape.width
    inside += hidden * (COMPUTE_BYTES * (2 if shape.gated else 1) + operand)
    edges = tokens * shape.width * outside
    edges /= cut if sizes.tensor_sequence else 1
    scores = _score_bytes(shape, sizes, batch, framework)
    return edges + tokens * inside / cut + scores


def _score_bytes(
    shape: ModelShape, sizes: MeshSizes, batch: StepBatch, framework: Framework
) -> float:
    if framework.fused_attention:
        return 0.0
    heads = max(1, shape.heads // sizes.tensor)
    scores = sizes.micro_batch * heads * batch.length**2 / sizes.sequence
    if framework.name == "xla" and sizes.remat == "none":
        # The loop over layers keeps scores, exponentials and what a mask left of them.
        return scores * 15
    return scores * (5 if framework.fused_norms else 6)


def _working(
    shape: ModelShape,
    sizes: MeshSizes,
    tokens: int,
    layer: float,
    framework: Framework,
) -> float:
    inner, outer = weights_here(shape, sizes)
    words = tokens * shape.vocabulary / sizes.tensor
    share = sizes.pipeline if framework.looped_pipeline else 1
    logits = words * (6 if framework.fused_norms else 10) / share
    gathered = ends = 0.0
    if sizes.sharded:
        layers = layers_here(shape, sizes) + shape.dense_layers
        gathered = 3 * COMPUTE_BYTES * inner / max(1, layers)
        ends = 2 * COMPUTE_BYTES * outer
    return max(layer * 1.25 + gathered, logits + ends)


def _expert_weights(shape: ModelShape, sizes: MeshSizes) -> float:
    whole = expert_weights(shape) * layers_here(shape, sizes)
    return whole / (sizes.tensor * sizes.expert)
