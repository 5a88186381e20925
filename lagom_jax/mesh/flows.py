"""Bytes that a step sends, by parallelism, worked out from dimensions and sizes alone.

Nothing here looks at a compiled program: these are the sums that one must find in it,
whatever the compiler merged, split, peeled off loops or reordered. Bytes are per
device, of the larger side of each collective: what a gather returns, what a
reduce-scatter reads, what the others read. The derivation is in
docs/explanation/mesh.md.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

from lagom_jax.mesh.frameworks import Framework
from lagom_jax.mesh.model_shape import ModelShape, Place, WeightShape
from lagom_jax.mesh.sizes import AXES, Axes, Axis, MeshSizes, StepBatch

Phase: TypeAlias = Literal["forward", "backward", "ends", "once"]
Reason: TypeAlias = Literal[
    "weights",
    "gradients",
    "entering matrices",
    "backward of entering",
    "leaving matrices",
    "backward of leaving",
    "cross entropy",
    "norms of queries and keys",
    "keys and values",
    "tokens to experts and back",
    "handing on",
    "into the pipeline and back",
    "out of it and back",
    "loss",
    "balance loss",
]
"""The reason for which something is sent, as people read it."""
COMPUTE_BYTES = 2
"""Of an element of what is multiplied and sent: bfloat16."""
_SCALAR = 4
_REPLICAS: Axes = ("data", "fsdp", "sequence", "expert")
"""Axes whose devices read a weight for data of their own."""


@dataclasses.dataclass(frozen=True, slots=True)
class Flow:
    """Bytes that one reason sends through one kind of collective.

    Example:
        >>> Flow("all-reduce", ("data",), 100, 4, "backward", "gradients").total
        400
    """

    kind: str
    """As HLO spells it."""
    axes: Axes
    """The axes whose devices take part."""
    nbytes: int
    """Per device, of all that goes at a time."""
    times: int
    """Executions in a step."""
    phase: Phase
    """In each layer forward or backward, before and after the layers, or once."""
    reason: Reason
    place: Place = "inside"
    """Of a weight, the part of its layer that needs it."""

    @property
    def total(self) -> int:
        """Bytes per device and step."""
        return self.nbytes * self.times


@functools.lru_cache(maxsize=1 << 8)
def flows(
    shape: ModelShape, sizes: MeshSizes, batch: StepBatch, framework: Framework
) -> tuple[Flow, ...]:
    """Everything that each device of a step sends.

    Args:
        shape: The model.
        sizes: The mesh.
        batch: What a step is trained on.
        framework: How the step is built.

    Example:
        >>> from lagom_jax.mesh.frameworks import framework_named
        >>> from lagom_jax.mesh.model_shape import published_shape
        >>> found = flows(published_shape("llama-3-8b"), MeshSizes(tensor=8),
        ...               StepBatch(4, 2048), framework_named("xla"))
        >>> sum(f.total for f in found if f.reason == "leaving matrices")
        4362076160
    """
    # Weights do not ask where ranks lie or how long a micro batch is.
    alike = dataclasses.replace(sizes, micro_batch=1, interleave=1, order=AXES)
    return (
        *_weights_sent(shape, alike, batch.micro_batches(sizes), framework),
        *_sent(_of_tensor(shape, sizes, batch, framework), sizes),
        *_sent(_of_sequence(shape, sizes, batch), sizes),
        *_sent(_of_experts(shape, sizes, batch, framework), sizes),
        *_sent(_of_pipeline(shape, sizes, batch, framework), sizes),
        *_sent(_of_loss(shape, sizes, batch, framework), sizes),
    )


@functools.lru_cache(maxsize=1 << 10)
def _weights_sent(
    shape: ModelShape, sizes: MeshSizes, count: int, framework: Framework
) -> tuple[Flow, ...]:
    return tuple(_sent(_of_weights(shape, sizes, count, framework), sizes))


def _sent(found: Iterable[Flow], sizes: MeshSizes) -> list[Flow]:
    """Those that send something, along axes of more than one device."""
    kept: list[Flow] = []
    for flow in found:
        axes = sizes.real(flow.axes)
        if axes and flow.total:
            same = axes == flow.axes
            kept.append(flow if same else dataclasses.replace(flow, axes=axes))
    return kept


def micro_tokens(sizes: MeshSizes, batch: StepBatch) -> int:
    """Tokens that one device has of a micro batch."""
    return sizes.micro_batch * batch.length // sizes.sequence


def turns(sizes: MeshSizes, batch: StepBatch, framework: Framework) -> int:
    """Times that each stage runs its layers in one direction.

    In a pipeline that is one loop they run on nothing, too, while it fills and drains.
    """
    count = batch.micro_batches(sizes)
    if framework.looped_pipeline and sizes.pipeline > 1:
        return count + sizes.pipeline - 1
    return count


def layers_here(shape: ModelShape, sizes: MeshSizes) -> int:
    """Repeated layers of one stage; the fullest one's."""
    return -(-shape.mixture_layers // sizes.pipeline)


def _of_weights(
    shape: ModelShape, sizes: MeshSizes, count: int, framework: Framework
) -> Iterator[Flow]:
    looped = framework.looped_pipeline and sizes.pipeline > 1
    times = 1 if framework.once or looped else count
    groups: list[tuple[tuple[WeightShape, ...], int, bool]] = [
        (shape.outer_weights(), 1, False),
        (shape.layer_weights(dense=True), shape.dense_layers, False),
        (shape.layer_weights(), layers_here(shape, sizes), True),
    ]
    for weights, layers, repeated in groups:
        outer = weights is groups[0][0]
        once = outer or (repeated and looped)
        phases: tuple[Phase, Phase] = ("forward", "backward")
        if once or not repeated:
            phases = ("ends", "ends")
        for weight in weights:
            again = sizes.remat == "full" if framework.name == "xla" else True
            yield from _of_weight(
                weight,
                sizes,
                framework,
                replicas=_REPLICAS + (() if repeated or not looped else ("pipeline",)),
                times=times * layers,
                rounds=times,
                again=again and not once and not weight.last,
                gradient=once or not weight.merged,
                phases=phases,
            )


def _of_weight(
    weight: WeightShape,
    sizes: MeshSizes,
    framework: Framework,
    *,
    replicas: Axes,
    times: int,
    rounds: int,
    again: bool,
    gradient: bool,
    phases: tuple[Phase, Phase],
) -> Iterator[Flow]:
    """One weight: gathered if it is cut, its gradient added up."""
    forward, backward = phases
    tensor, expert = weight.tensor and sizes.tensor > 1, weight.expert
    owned = {axis for axis, cut in (("tensor", tensor), ("expert", expert)) if cut}
    if expert:
        replicas = _without(replicas, "expert")
    kept = _without(("tensor", "expert"), *(() if tensor else ("tensor",)))
    kept = kept if expert else _without(kept, "expert")
    whole = weight.size // sizes.size(kept) * COMPUTE_BYTES
    if forward == "ends" and framework.name == "xla" and not sizes.sharded:
        # XLA moves sums out of the loop over micro batches, where they are its own.
        times //= max(1, rounds)
    summed = round(whole * framework.gradient_bytes / COMPUTE_BYTES)
    cut: Axes = ()
    if sizes.sharded:
        cut = _without(replicas, "data")
        for phase in (forward, backward) if again else (forward,):
            place = weight.place
            yield Flow("all-gather", cut, whole, times, phase, "weights", place)
        if gradient:
            yield Flow("reduce-scatter", cut, summed, times, backward, "gradients")
    if not gradient:
        return
    # What is whole along the tensor axis, but read for a part of the work only.
    partial = "tensor" not in owned and sizes.tensor > 1
    partial = partial and (sizes.tensor_sequence or weight.inside)
    rest = _without(replicas, *cut)
    along: Axes = ("tensor",) if partial else ()
    if cut and rest:
        # Each part of a weight that is cut is added up over its repetitions.
        part = summed // sizes.size(cut)
        yield Flow("all-reduce", rest, part, times, backward, "gradients")
        rest = ()
    if framework.optimizer_sharded and not cut:
        how = framework.sums_gradients
        yield Flow(how, rest, summed, times, "once", "gradients")
        yield Flow("all-gather", rest, whole, times, "once", "weights")
        rest = ()
    yield Flow("all-reduce", rest + along, summed, times, backward, "gradients")


def _without(axes: Axes, *others: Axis) -> Axes:
    return tuple([axis for axis in axes if axis not in others])


def _of_tensor(
    shape: ModelShape, sizes: MeshSizes, batch: StepBatch, framework: Framework
) -> Iterator[Flow]:
    if sizes.tensor == 1:
        return
    axis: Axes = ("tensor",)
    tokens = micro_tokens(sizes, batch)
    bytes_ = tokens * shape.width * COMPUTE_BYTES
    count, rounds = batch.micro_batches(sizes), turns(sizes, batch, framework)
    each = 1 if shape.parallel_block else 2
    ends = each * shape.dense_layers + 1
    outside = count
    if framework.looped_pipeline:
        # Stages share what stands before and after the layers.
        outside = -(-count // sizes.pipeline)
    places: tuple[tuple[int, Phase, Phase], ...] = (
        (each * layers_here(shape, sizes) * rounds, "forward", "backward"),
        (ends * outside, "ends", "ends"),
    )
    for times, forward, backward in places:
        if sizes.tensor_sequence:
            kept = times - (outside if forward == "ends" else 0)
            again = kept if sizes.remat == "full" else 0
            yield Flow("all-gather", axis, bytes_, times, forward, "entering matrices")
            yield Flow("all-gather", axis, bytes_, again, backward, "entering matrices")
            yield Flow(
                *("reduce-scatter", axis, bytes_, times),
                *(backward, "backward of entering"),
            )
            summed = times + (again if framework.recomputes_whole else 0)
            yield Flow(
                "reduce-scatter", axis, bytes_, summed, forward, "leaving matrices"
            )
            yield Flow(
                "all-gather", axis, bytes_, times, backward, "backward of leaving"
            )
        else:
            again = 0
            if sizes.remat == "full" and framework.name != "xla" and forward != "ends":
                # What comes over the axis last is in no gradient.
                needed = each if framework.recomputes_whole else each - 1
                again = times // each * needed
            summed = times + again
            yield Flow("all-reduce", axis, bytes_, summed, forward, "leaving matrices")
            yield Flow(
                "all-reduce", axis, bytes_, times, backward, "backward of entering"
            )
    # The largest logit; then the sum of the exponentials and the right word's.
    scalars = tokens * _SCALAR
    yield Flow("all-reduce", axis, 3 * scalars, outside, "ends", "cross entropy")
    if shape.qk_norm:
        # Two sums of squares forward, the gradients of their roots backward.
        inside = layers_here(shape, sizes) * rounds + shape.dense_layers * outside
        yield Flow(
            *("all-reduce", axis, 2 * scalars, inside),
            *("forward", "norms of queries and keys"),
        )
        yield Flow(
            *("all-reduce", axis, 2 * scalars, inside),
            *("backward", "norms of queries and keys"),
        )


def _of_sequence(
    shape: ModelShape, sizes: MeshSizes, batch: StepBatch
) -> Iterator[Flow]:
    """Keys and values of the whole sequence for every part of it."""
    if sizes.sequence == 1:
        return
    axis: Axes = ("sequence",)
    width = 2 * shape.kv_width // sizes.tensor
    whole = sizes.micro_batch * batch.length * width * COMPUTE_BYTES
    layers = -(-shape.layers // sizes.pipeline)
    times = layers * batch.micro_batches(sizes)
    yield Flow("all-gather", axis, whole, times, "forward", "keys and values")
    again = times if sizes.remat != "none" else 0
    yield Flow("all-gather", axis, whole, again, "backward", "keys and values")
    yield Flow("reduce-scatter", axis, whole, times, "backward", "keys and values")


def expert_slices(framework: Framework) -> int:
    """Independent parts of a micro batch inside one layer of experts."""
    return 2 if framework.name == "xla" else 1


def slot_bytes(
    shape: ModelShape, sizes: MeshSizes, batch: StepBatch, framework: Framework
) -> int:
    """Bytes of a micro batch's tokens on their way to the experts of a layer."""
    experts = shape.experts
    if experts is None:
        return 0
    tokens, parts = micro_tokens(sizes, batch), expert_slices(framework)
    if framework.name == "xla":
        rows = experts.slots(tokens // parts) * experts.count * parts
    else:
        # Without slots each token goes to those that it chose, and nothing is lost.
        cut = sizes.tensor if sizes.tensor_sequence else 1
        rows = tokens * experts.top_k // cut
    return rows * shape.width * COMPUTE_BYTES


def _of_experts(
    shape: ModelShape, sizes: MeshSizes, batch: StepBatch, framework: Framework
) -> Iterator[Flow]:
    if shape.experts is None or sizes.expert == 1:
        return
    parts = expert_slices(framework)
    nbytes = slot_bytes(shape, sizes, batch, framework) // parts
    times = parts * 2 * layers_here(shape, sizes) * turns(sizes, batch, framework)
    axis: Axes = ("expert",)
    phases: tuple[Phase, Phase] = ("forward", "backward")
    for phase in phases:
        yield Flow(
            "all-to-all", axis, nbytes, times, phase, "tokens to experts and back"
        )


def _of_pipeline(
    shape: ModelShape, sizes: MeshSizes, batch: StepBatch, framework: Framework
) -> Iterator[Flow]:
    if sizes.pipeline == 1:
        return
    axis: tuple[Axis] = ("pipeline",)
    nbytes = micro_tokens(sizes, batch) * shape.width * COMPUTE_BYTES
    if sizes.tensor_sequence:
        nbytes //= sizes.tensor
    rounds = turns(sizes, batch, framework) * sizes.interleave
    part = nbytes
    if framework.hands_on_parts and not sizes.tensor_sequence:
        part //= sizes.tensor
        yield Flow("all-gather", ("tensor",), nbytes, rounds, "once", "handing on")
    for each in (part, nbytes):
        yield Flow("collective-permute", axis, each, rounds, "once", "handing on")
    if framework.looped_pipeline:
        everything = nbytes * batch.micro_batches(sizes)
        yield Flow(
            "all-gather", axis, everything, 2, "once", "into the pipeline and back"
        )
        yield Flow("reduce-scatter", axis, everything, 2, "once", "out of it and back")


def _of_loss(
    shape: ModelShape, sizes: MeshSizes, batch: StepBatch, framework: Framework
) -> Iterator[Flow]:
    axes: Axes = _REPLICAS
    if framework.looped_pipeline:
        axes = (*axes, "pipeline")
    looped = framework.looped_pipeline and sizes.pipeline > 1
    times = 1 if looped else batch.micro_batches(sizes)
    yield Flow("all-reduce", axes, _SCALAR, times, "once", "loss")
    if shape.experts is not None and sizes.tensor > 1:
        both: Axes = (*axes, "tensor")
        yield Flow("all-reduce", both, _SCALAR, times, "once", "balance loss")
