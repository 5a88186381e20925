"""Kernels of attention, as the cost model takes them.

Frameworks with a kernel of their own have one product; XLA's attention writes its
scores, and how often they pass over memory depends on the GPU that it compiles for.
docs/explanation/mesh.md says how the counts come about.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Final

from lagom_jax.hlo.matmul import Matmul
from lagom_jax.hlo.work import Work
from lagom_jax.mesh.flows import COMPUTE_BYTES, micro_tokens
from lagom_jax.mesh.frameworks import Framework
from lagom_jax.mesh.kernel_work import BF16, F32, moved, product
from lagom_jax.mesh.model_shape import ModelShape
from lagom_jax.mesh.sizes import MeshSizes, StepBatch


@dataclasses.dataclass(frozen=True, slots=True)
class _ScorePasses:
    """Bytes that pass for each score beside its products, by kind of kernel."""

    forward: Mapping[str, float]
    again: Mapping[str, float]
    backward: Mapping[str, float]


# Forward the mask is put over what a product wrote (5), and the softmax reads it and
# writes probabilities (6). XLA weighs arithmetic that it does twice against what it
# would write, so that newer GPUs write more of the softmax that is computed again.
_FORWARD: Final = {"fusion": 5.0, "reduction": 6.0}
_PASSES: Final = {
    8: _ScorePasses(_FORWARD, {"reduction": 6.0}, {"reduction": 10.0}),
    9: _ScorePasses(_FORWARD, {"reduction": 10.0}, {"reduction": 10.0}),
    10: _ScorePasses(_FORWARD, {"reduction": 12.0}, {"reduction": 6.0, "fusion": 10.0}),
}
_FUSED_PASSES: Final = _ScorePasses({"fusion": 8.0}, {"fusion": 8.0}, {"fusion": 14.0})
# Products of heads that need no padding are kernels of XLA's own, which read gradients
# of scores in float32 (4); the newest GPUs convert probabilities by themselves (6).
_TAKES_ANY_WIDTH: Final = 9
_CONVERTED: Final = {"fusion": 4.0}
_CONVERTED_AGAIN: Final = {10: {"fusion": 6.0}}
# A bias for each pair of positions and head, written and read.
_BIASES: Final = {"copy": 6.0, "fusion": 4.0}
# And where nothing is computed again: scores are put aside in each layer, brought back,
# and put into another order.
_KEPT: Final = {"copy": 16.0, "transpose": 24.0, "fusion": 10.0}
# Scores in another order for the product that follows, where heads share keys.
_SHARED_KEYS: Final = {"transpose": 4.0}
# Times that queries, keys and values pass over memory to lie head by head, without
# experts, whose own passes have it in them.
_HEADS: Final = {"forward": 6.0, "again": 7.0, "backward": 9.0}


@dataclasses.dataclass(frozen=True, slots=True)
class AttentionWork:
    """Kernels of attention, without the projections around it."""

    forward: tuple[Work, ...]
    again: tuple[Work, ...]
    """Of the forward pass, computed once more."""
    backward: tuple[Work, ...]
    needless: tuple[Work, ...]
    """Of what is computed again, what only a weight's gradient needs."""


def attention_work(
    shape: ModelShape,
    sizes: MeshSizes,
    batch: StepBatch,
    framework: Framework,
    generation: int,
) -> AttentionWork:
    """The kernels of attention in one layer and micro batch.

    Args:
        shape: The model.
        sizes: The mesh.
        batch: What a step is trained on.
        framework: How the step is built.
        generation: Of the GPU, as in compute capability 9.0.

    Example:
        >>> from lagom_jax.mesh.frameworks import framework_named
        >>> from lagom_jax.mesh.model_shape import published_shape
        >>> args = published_shape("llama-3-8b"), MeshSizes(), StepBatch(1, 2048)
        >>> found = attention_work(*args, framework_named("xla"), 9)
        >>> len(found.backward) > len(found.forward)
        True
    """
    if framework.fused_attention:
        forward = (_fused(shape, sizes, batch, framework, 2),)
        backward = (_fused(shape, sizes, batch, framework, 5),)
        return AttentionWork(forward, forward, backward, ())
    scores, head = score_count(shape, sizes, batch), shape.head_width
    length = batch.length
    # Heads that share keys are rows of one product.
    pairs = max(1, shape.kv_heads // sizes.tensor) * sizes.micro_batch
    rows = length // sizes.sequence * (shape.heads // shape.kv_heads)
    wide = BF16 if framework.fused_norms else F32
    back = wide if _own(head, generation) else BF16
    mixed = product(Matmul(pairs, head, rows, length, BF16, BF16, BF16))
    products = (product(Matmul(pairs, rows, length, head, BF16, BF16, wide)), mixed)
    gradients = map(
        product,
        (
            Matmul(pairs, rows, length, head, BF16, BF16, BF16),
            mixed.matmuls[0],
            Matmul(pairs, rows, head, length, back, back, back),
            Matmul(pairs, length, head, rows, back, back, back),
        ),
    )
    passes = _passes(generation, framework, head)
    around = {
        name: (
            *(moved(kind, each * scores) for kind, each in counts),
            *_around(shape, sizes, batch, framework, name),
        )
        for name, counts in passes.items()
    }
    forward, again = products + around["forward"], products + around["again"]
    if shape.linear_biases and not framework.fused_norms:
        forward += tuple(_moved(_BIASES, scores))
    backward = (*gradients, *around["backward"])
    if framework.name == "xla" and sizes.remat == "none":
        backward += tuple(_moved(_KEPT, scores))
    needless = (mixed, *_shared(shape, framework, scores))
    return AttentionWork(forward, again, backward, needless)


def score_count(shape: ModelShape, sizes: MeshSizes, batch: StepBatch) -> float:
    """Scores of attention on one device, all of them, whatever a mask hides."""
    heads = max(1, shape.heads // sizes.tensor)
    return float(sizes.micro_batch * heads * batch.length**2) / sizes.sequence


def _passes(
    generation: int, framework: Framework, head: int
) -> dict[str, list[tuple[str, float]]]:
    found = _FUSED_PASSES
    known = min(max(generation, min(_PASSES)), max(_PASSES))
    again: dict[str, float] = {}
    backward: dict[str, float] = {}
    if not framework.fused_norms:
        found = _PASSES[known]
        if _own(head, known):
            again, backward = _CONVERTED_AGAIN.get(known, {}), _CONVERTED
    return {
        "forward": list(found.forward.items()),
        "again": [*found.again.items(), *again.items()],
        "backward": [*found.backward.items(), *backward.items()],
    }


def _own(head: int, generation: int) -> bool:
    """True where products of heads are kernels of XLA's own, which need no padding."""
    return head & (head - 1) == 0 or generation == _TAKES_ANY_WIDTH


def _moved(passes: Mapping[str, float], count: float) -> Iterator[Work]:
    for kind, each in passes.items():
        yield moved(kind, each * count)


def _shared(shape: ModelShape, framework: Framework, scores: float) -> Iterator[Work]:
    if shape.kv_heads < shape.heads and not framework.fused_norms:
        yield from _moved(_SHARED_KEYS, scores)


def _around(
    shape: ModelShape,
    sizes: MeshSizes,
    batch: StepBatch,
    framework: Framework,
    name: str,
) -> Iterator[Work]:
    """Scores and heads that are put into another order."""
    scores = score_count(shape, sizes, batch)
    yield from _shared(shape, framework, scores)
    if framework.name == "xla" and shape.experts is None:
        inner = micro_tokens(sizes, batch) * shape.width / sizes.tensor
        yield moved("transpose", _HEADS[name] * inner * COMPUTE_BYTES)


def _fused(
    shape: ModelShape,
    sizes: MeshSizes,
    batch: StepBatch,
    framework: Framework,
    products: int,
) -> Work:
    """Attention in one kernel: half of the scores, the rest is behind the mask."""
    flops = products * 2 * score_count(shape, sizes, batch) * shape.head_width / 2
    flops *= framework.attention_times
    tokens = micro_tokens(sizes, batch)
    bytes_ = tokens * (2 * shape.width + 2 * shape.kv_width) * COMPUTE_BYTES
    bytes_ = bytes_ * products // 2 // sizes.tensor
    return Work("attention", flops, bytes_, bytes_ // 4)
