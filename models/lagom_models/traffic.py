"""The bytes that a step has to send, worked out from config and layout alone.

Nothing here looks at a compiled program: these are the sums that one must find in
it, whatever the compiler merged, split, peeled off loops or reordered. Bytes are per
device and step, of the larger side of each collective: what a gather returns, what a
reduce-scatter reads, what the others read.

With A the bytes of one device's activations `[batch, time, width]` in bfloat16, and W
those of one weight after it was brought together:

- each weight that is cut over replicas: all-gather W forward, W again when the layer
  is recomputed, reduce-scatter W for its gradient; a whole weight: all-reduce W;
- tensor parallelism: all-reduce A after the matrices cut by rows and, backward,
  before those cut by columns; with sequence parallelism both become reduce-scatter A
  in one and all-gather A in the other direction, and the gather before matrices is
  repeated when the layer is recomputed;
- experts: all-to-all of all slots, there and back, forward and backward;
- a pipeline: collective-permute of one micro batch in every tick, in both directions.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import jax

from lagom_models.layout import COMPUTE, Placement
from lagom_models.pipeline import ticks
from lagom_models.step import TrainingStep

Axes = tuple[str, ...]
SCALAR = 4  # bytes of a float32


@dataclasses.dataclass(frozen=True, slots=True)
class Flow:
    """Bytes that one reason sends through one kind of collective.

    Attributes:
        kind: The kind, as HLO spells it.
        axes: The mesh axes whose devices take part.
        bytes: Per device and step, on the larger side.
        reason: What is sent, in words.
    """

    kind: str
    axes: Axes
    bytes: int
    reason: str


def flows(step: TrainingStep) -> tuple[Flow, ...]:
    """Everything that a step sends.

    Example:
        >>> from lagom_models import build
        >>> step = build("llama-3-8b", devices=8, parallelism="tp", tiny=True)
        >>> [flow.bytes for flow in flows(step) if flow.reason == "leaving matrices"]
        [589824]
    """
    found = [*_weights(step), *_activations(step), *_loss(step)]
    return tuple(flow for flow in found if flow.axes and flow.bytes)


def total_bytes(step: TrainingStep) -> dict[tuple[str, int], int]:
    """Bytes per device and step by kind of collective and number of participants.

    Example:
        >>> from lagom_models import build
        >>> step = build("llama-3-8b", devices=64, layers=1)
        >>> total_bytes(step)["all-reduce", 64]
        4
    """
    totals: defaultdict[tuple[str, int], int] = defaultdict(int)
    for flow in flows(step):
        totals[flow.kind, step.model.layout.size(flow.axes)] += flow.bytes
    return dict(totals)


def _weights(step: TrainingStep) -> Iterator[Flow]:
    model = step.model
    for group, states in step.arguments[0].weights.items():
        listed = states if isinstance(states, list) else [states]
        places = jax.tree.leaves(model.placements[group])
        for state in listed:
            leaves = jax.tree_util.tree_leaves_with_path(state)
            once = group == "outer" or (group == "layers" and model.layout.pipeline)
            for (path, leaf), place in zip(leaves, places, strict=True):
                name = getattr(path[0], "key", "")
                again = model.remat and not once and not _added_last(step, name)
                # Side by side, both halves add a bias to the same sum: the gradients
                # are equal, and the compiler sends one for both. A pipeline adds
                # them up over its ticks first, where it does not see that.
                merged = name == "attention_bias" and _added_last(step, name)
                yield from _weight(
                    step, leaf, place, again=again, gradient=once or not merged
                )


def _weight(
    step: TrainingStep, leaf: Any, place: Placement, *, again: bool, gradient: bool
) -> Iterator[Flow]:
    cut = tuple(axis for entry in place.spec for axis in _axes(entry))
    kept = tuple(axis for axis in cut if axis not in place.gather)
    whole = leaf.size // step.model.layout.size(kept) * COMPUTE.dtype.itemsize
    if place.gather:
        yield Flow("all-gather", place.gather, whole * (1 + again), "weights")
        yield Flow("reduce-scatter", place.gather, whole * gradient, "gradients")
    added = tuple(axis for axis in place.varying if axis not in cut)
    yield Flow("all-reduce", added, whole * gradient, "gradients")


def _axes(entry: str | Axes | None) -> Axes:
    return () if entry is None else (entry,) if isinstance(entry, str) else entry


def _added_last(step: TrainingStep, name: str) -> bool:
    """True if a weight is a bias that nothing else in its layer depends on.

    To recompute what the backward pass asks for, such a bias is not needed.
    """
    side_by_side = step.model.config.parallel_block
    return name == "forward_bias" or (side_by_side and name == "attention_bias")


def _activations(step: TrainingStep) -> Iterator[Flow]:
    model, layout, config = step.model, step.model.layout, step.model.config
    tokens = step.batch // layout.replicas * step.sequence
    bytes_ = tokens * config.width * COMPUTE.dtype.itemsize
    axis = layout.model_axis
    if layout.tensor:
        per_layer = 1 if config.parallel_block else 2
        # The embedding is added up like a layer's output, the head reads like a
        # layer; only layers are recomputed.
        times = per_layer * config.layers
        if layout.sequence:
            gathers = (times + 1) + times * model.remat
            yield Flow("all-gather", axis, bytes_ * gathers, "entering matrices")
            yield Flow(
                "reduce-scatter", axis, bytes_ * (times + 1), "backward of entering"
            )
            yield Flow("reduce-scatter", axis, bytes_ * (times + 1), "leaving matrices")
            yield Flow("all-gather", axis, bytes_ * (times + 1), "backward of leaving")
        else:
            all_of_it = bytes_ * (times + 1)
            yield Flow("all-reduce", axis, all_of_it, "leaving matrices")
            yield Flow("all-reduce", axis, all_of_it, "backward of entering")
        # The largest logit; then the sum of the exponentials and the right word's.
        yield Flow("all-reduce", axis, 3 * tokens * SCALAR, "cross entropy")
        if config.qk_norm:
            # Two sums of squares forward, the gradients of their roots backward.
            squares = 2 * 2 * tokens * SCALAR * config.layers
            yield Flow("all-reduce", axis, squares, "norms of queries and keys")
    if layout.expert and config.experts is not None:
        slots = config.experts.capacity(tokens // layout.slices) * config.experts.count
        slot_bytes = slots * config.width * COMPUTE.dtype.itemsize * layout.slices
        times = 4 * (config.layers - config.dense_layers)
        yield Flow("all-to-all", axis, slot_bytes * times, "tokens to experts and back")
    if layout.pipeline:
        everything = bytes_ * layout.model
        micro_batch = everything // model.micro_batches
        turns = 2 * ticks(model.micro_batches, layout.model)
        yield Flow("collective-permute", axis, micro_batch * turns, "handing on")
        yield Flow("all-gather", axis, 2 * everything, "into the pipeline and back")
        yield Flow("reduce-scatter", axis, 2 * everything, "out of it and back")


def _loss(step: TrainingStep) -> Iterator[Flow]:
    layout = step.model.layout
    yield Flow("all-reduce", layout.batch_axes, SCALAR, "loss")
    if step.model.config.experts is not None and layout.tensor:
        axes = layout.data_axis + layout.model_axis
        yield Flow("all-reduce", axes, SCALAR, "balance loss")
