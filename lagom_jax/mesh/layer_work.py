"""Kernels of a layer, of the ends and of the optimizer, as the cost model takes them.

Products are listed by their shapes on one device; what surrounds them counts by the
times that it passes over memory. The counts are those of compiled programs, and
docs/explanation/mesh.md says how they come about.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Final

from lagom_jax.hlo.matmul import Matmul
from lagom_jax.hlo.work import Work
from lagom_jax.mesh.flows import (
    COMPUTE_BYTES,
    expert_slices,
    layers_here,
    micro_tokens,
)
from lagom_jax.mesh.frameworks import Framework
from lagom_jax.mesh.model_shape import ModelShape, WeightShape
from lagom_jax.mesh.sizes import MeshSizes, StepBatch

_BF16, _F32 = "bf16", "f32"
# Bytes that pass for each score of attention, beside its products: the largest and the
# sum of a row, the exponentials, and scores in another order for the product that
# follows where heads share keys.
_SCORES_FORWARD: Final = {"reduction": 6.0}
_SCORES_BACKWARD: Final = {"reduction": 14.0, "fusion": 5.0, "copy": 4.0}
# And where nothing is computed again: scores are put aside in each layer, brought back,
# and put into another order.
_SCORES_KEPT: Final = {"copy": 16.0, "transpose": 24.0, "fusion": 10.0}
_SHARED_KEYS: Final = {"transpose": 4.0}
_SCORES_FUSED: Final = ({"fusion": 8.0}, {"fusion": 14.0})
# Times that tokens on their way to experts and back pass over memory, in each of two
# passes forward and two backward; where experts are cut, put into another order for
# each exchange.
_SLOTS_WHOLE: Final = {"scatter": 0.9, "reduction": 1.0, "transpose": 0.8}
_SLOTS_CUT: Final = {
    "scatter": 0.65,
    "reduction": 0.85,
    "transpose": 2.75,
    "copy": 2.0,
}
_SLOTS_FUSED: Final = {"scatter": 1.0, "fusion": 2.0}
# Times that norms and residuals pass over the activations of a layer.
_NORM_PASSES: Final = 8.0


@dataclasses.dataclass(frozen=True, slots=True)
class LayerWork:
    """Kernels of one layer and micro batch on one device."""

    entering: tuple[Work, ...]
    """Forward, up to the attention's output."""
    leaving: tuple[Work, ...]
    """Forward, the feed-forward."""
    backward: tuple[Work, ...]
    again: tuple[Work, ...]
    """Of the forward pass, what the backward pass computes again."""

    @property
    def forward(self) -> tuple[Work, ...]:
        """The whole forward pass."""
        return self.entering + self.leaving


@functools.lru_cache(maxsize=1 << 10)
def layer_work(
    shape: ModelShape,
    sizes: MeshSizes,
    batch: StepBatch,
    framework: Framework,
    *,
    dense: bool = False,
) -> LayerWork:
    """The work of one layer on one micro batch.

    Args:
        shape: The model.
        sizes: The mesh.
        batch: What a step is trained on.
        framework: How the step is built.
        dense: A layer without experts.
    """
    parts = _parts(shape, sizes, framework)
    sizes = dataclasses.replace(sizes, micro_batch=sizes.micro_batch // parts)
    attention = tuple(_attention(shape, sizes, batch, framework))
    back_attention = tuple(_attention_backward(shape, sizes, batch, framework))
    tokens = micro_tokens(sizes, batch)
    projections = _projections(shape, sizes, tokens, batch.products)
    feeding = _feeding(shape, sizes, tokens, framework, batch.products, dense=dense)
    around = _around(shape, sizes, tokens, framework, dense=dense)
    entering = (*map(_product, projections[:1]), *attention)
    entering += tuple(map(_product, projections[1:]))
    leaving = (*map(_product, feeding), *around)
    if batch.products != _BF16:
        entering += (_narrowed([(one.m, one.k, one.batch) for one in projections]),)
        leaving += (_narrowed([(one.m, one.k, one.batch) for one in feeding]),)
    backward = tuple(
        _product(matmul)
        for product in (*feeding, *projections)
        for matmul in _gradients(product)
    )
    backward += (*back_attention, *around, *around)
    if batch.products != _BF16:
        products = (*feeding, *projections)
        backward += (_narrowed([(one.m, one.n, one.batch) for one in products]),)
    again: tuple[Work, ...] = ()
    if sizes.remat == "full":
        # The last product of all is not needed to find the gradients.
        fed = feeding if framework.recomputes_whole else feeding[:-1]
        again = (*entering, *map(_product, fed), *around)
    elif sizes.remat == "selective":
        again = (*attention, *around) if not framework.fused_attention else around
        if framework.recomputes == "feed-forward":
            again = (*map(_product, feeding[:-1]), *around)
    weights = tuple(_around_weights(shape, sizes, parts * tokens, framework))
    whole = (parts * one for one in (entering, leaving, backward, again))
    entering, leaving, backward, again = whole
    return LayerWork(entering, leaving, (*backward, *weights), again)


def _parts(shape: ModelShape, sizes: MeshSizes, framework: Framework) -> int:
    """Parts of a micro batch that a layer works on by themselves."""
    cut = shape.experts is not None and sizes.expert > 1
    return min(expert_slices(framework), sizes.micro_batch) if cut else 1


@functools.lru_cache(maxsize=1 << 10)
def ends_work(
    shape: ModelShape, sizes: MeshSizes, batch: StepBatch, framework: Framework
) -> tuple[Work, ...]:
    """Embedding, head and loss of one micro batch, forward and backward."""
    tokens = micro_tokens(sizes, batch)
    words, width = shape.vocabulary // sizes.tensor, shape.width
    logits = Matmul(1, tokens, words, width, _BF16, _BF16, _F32)
    wide = _BF16 if framework.fused_norms else _F32
    back = (
        Matmul(1, tokens, width, words, wide, wide, _F32),
        Matmul(1, width, words, tokens, wide, wide, _F32),
    )
    return (
        *map(_product, (logits, *back)),
        _moved("reduction", 16.0 * tokens * words),
        _moved("fusion", 8.0 * words * width),
        _moved("gather", 12.0 * tokens * width),
    )


def optimizer_work(held: float, framework: Framework) -> Work:
    """The update of so many weights: adamw in float32."""
    del framework
    return _moved("fusion", 32.0 * held)


def _product(matmul: Matmul) -> Work:
    operand = matmul.batch * matmul.k * (matmul.m + matmul.n) * COMPUTE_BYTES
    size = 4 if matmul.out == _F32 else 2
    written = matmul.batch * matmul.m * matmul.n * size
    return Work("matmul", float(matmul.flops), operand, written, (matmul,))


def _moved(kind: str, nbytes: float) -> Work:
    return Work(kind, 0.0, int(nbytes / 2), int(nbytes / 2))


def _narrowed(operands: list[tuple[int, int, int]]) -> Work:
    """Operands put into a narrow type: read in bfloat16 and written in both orders."""
    elements = sum(rows * columns * batch for rows, columns, batch in operands)
    return _moved("fusion", 4.0 * elements)


def _gradients(product: Matmul) -> tuple[Matmul, Matmul]:
    batch, m, n, k = product.batch, product.m, product.n, product.k
    kind = product.lhs
    return (
        Matmul(batch, m, k, n, kind, kind, _BF16),
        Matmul(batch, k, n, m, kind, kind, _BF16),
    )


def _projections(
    shape: ModelShape, sizes: MeshSizes, tokens: int, kind: str
) -> list[Matmul]:
    """Queries, keys and values at once, and the output."""
    cut = sizes.tensor
    inner = shape.width // cut
    wide = inner + 2 * max(1, shape.kv_width // cut)
    return [
        Matmul(1, tokens, wide, shape.width, kind, kind, _BF16),
        Matmul(1, tokens, shape.width, inner, kind, kind, _BF16),
    ]


def _feeding(
    shape: ModelShape,
    sizes: MeshSizes,
    tokens: int,
    framework: Framework,
    kind: str,
    *,
    dense: bool,
) -> list[Matmul]:
    cut = sizes.tensor

    def dense_products(hidden: int) -> list[Matmul]:
        up = Matmul(1, tokens, hidden // cut, shape.width, kind, kind, _BF16)
        down = Matmul(1, tokens, shape.width, hidden // cut, kind, kind, _BF16)
        return [up] * (2 if shape.gated else 1) + [down]

    experts = shape.experts
    if dense or experts is None:
        return dense_products(shape.hidden)
    here = max(1, experts.count // sizes.expert)
    if framework.name == "xla":
        rows = experts.slots(tokens) * sizes.expert
    else:
        rows = tokens * experts.top_k * sizes.expert // experts.count
    rows, hidden = max(1, rows), max(1, experts.hidden // cut)
    up = Matmul(here, rows, hidden, shape.width, kind, kind, _BF16)
    down = Matmul(here, rows, shape.width, hidden, kind, kind, _BF16)
    found = [up, up, down]
    if experts.shared:
        found = dense_products(experts.shared * experts.hidden) + found
    return found


def _scores(shape: ModelShape, sizes: MeshSizes, batch: StepBatch) -> float:
    """Scores of attention on one device, all of them, whatever a mask hides."""
    heads = max(1, shape.heads // sizes.tensor)
    return float(sizes.micro_batch * heads * batch.length**2) / sizes.sequence


def _attention(
    shape: ModelShape, sizes: MeshSizes, batch: StepBatch, framework: Framework
) -> Iterator[Work]:
    scores, head = _scores(shape, sizes, batch), shape.head_width
    if framework.fused_attention:
        yield _fused(shape, sizes, batch, framework, 2)
        return
    # Heads that share keys are rows of one product.
    pairs = max(1, shape.kv_heads // sizes.tensor) * sizes.micro_batch
    rows = batch.length // sizes.sequence * (shape.heads // shape.kv_heads)
    products = [
        Matmul(pairs, rows, batch.length, head, _BF16, _BF16, _F32),
        Matmul(pairs, head, rows, batch.length, _BF16, _BF16, _BF16),
    ]
    if framework.fused_norms:
        products[0] = dataclasses.replace(products[0], out=_BF16)
    yield from map(_product, products)
    passes = _passes(shape, framework, 0)
    for kind, each in passes.items():
        yield _moved(kind, each * scores)


def _attention_backward(
    shape: ModelShape, sizes: MeshSizes, batch: StepBatch, framework: Framework
) -> Iterator[Work]:
    scores, head = _scores(shape, sizes, batch), shape.head_width
    if framework.fused_attention:
        yield _fused(shape, sizes, batch, framework, 5)
        return
    pairs = max(1, shape.kv_heads // sizes.tensor) * sizes.micro_batch
    rows = batch.length // sizes.sequence * (shape.heads // shape.kv_heads)
    length = batch.length
    wide = _BF16 if framework.fused_norms else _F32
    yield from map(
        _product,
        (
            Matmul(pairs, rows, length, head, _BF16, _BF16, wide),
            Matmul(pairs, head, length, rows, _BF16, _BF16, _BF16),
            Matmul(pairs, rows, head, length, wide, wide, wide),
            Matmul(pairs, length, head, rows, wide, wide, wide),
        ),
    )
    passes = _passes(shape, framework, 1)
    for kind, each in passes.items():
        yield _moved(kind, each * scores)
    if framework.name == "xla" and sizes.remat == "none":
        for kind, each in _SCORES_KEPT.items():
            yield _moved(kind, each * scores)


def _passes(shape: ModelShape, framework: Framework, backward: int) -> dict[str, float]:
    """Bytes that pass for each score, by kind of kernel."""
    if framework.fused_norms:
        return _SCORES_FUSED[backward]
    shared = shape.kv_heads < shape.heads
    found = (_SCORES_FORWARD, _SCORES_BACKWARD)[backward]
    return {**found, **_SHARED_KEYS} if shared else found


def _fused(
    shape: ModelShape,
    sizes: MeshSizes,
    batch: StepBatch,
    framework: Framework,
    products: int,
) -> Work:
    """Attention in one kernel: half of the scores, the rest is behind the mask."""
    flops = products * 2 * _scores(shape, sizes, batch) * shape.head_width / 2
    flops *= framework.attention_times
    tokens = micro_tokens(sizes, batch)
    moved = tokens * (2 * shape.width + 2 * shape.kv_width) * COMPUTE_BYTES
    moved = moved * products // 2 // sizes.tensor
    return Work("attention", flops, moved, moved // 4)


def _around(
    shape: ModelShape,
    sizes: MeshSizes,
    tokens: int,
    framework: Framework,
    *,
    dense: bool,
) -> tuple[Work, ...]:
    """Norms, residuals, activations, and the way of tokens to their experts."""
    cut = sizes.tensor if sizes.tensor_sequence else 1
    norms = _NORM_PASSES * (0.75 if framework.fused_norms else 1.0)
    outside = norms * tokens * shape.width * COMPUTE_BYTES / cut
    hidden = shape.hidden
    experts = shape.experts
    more: tuple[Work, ...] = ()
    if experts is not None and not dense:
        share = experts.capacity_factor if framework.name == "xla" else 1.0
        rows = tokens * experts.top_k * share
        hidden = round(rows / tokens * experts.hidden)
        hidden += experts.shared * experts.hidden
        passes = _SLOTS_CUT if sizes.expert > 1 else _SLOTS_WHOLE
        if framework.fused_norms:
            passes = _SLOTS_FUSED
        more = tuple(
            _moved(kind, each * rows * shape.width * COMPUTE_BYTES)
            for kind, each in passes.items()
        )
    inside = 4.0 if shape.gated else 3.0
    inside *= tokens * hidden / sizes.tensor * COMPUTE_BYTES
    return (
        _moved("reduction", outside / 2),
        _moved("fusion", outside / 2 + inside),
        *more,
    )


def _around_weights(
    shape: ModelShape, sizes: MeshSizes, tokens: int, framework: Framework
) -> Iterator[Work]:
    """Work on weights and their gradients beside the products, for each micro batch."""
    weights, _, _ = _cut_weights(shape, sizes.tensor, sizes.expert)
    if framework.name != "xla":
        if framework.added_bytes:
            yield _moved("fusion", framework.added_bytes * weights)
        return
    if sizes.pipeline > 1:
        # Cast each time in both passes, and gradients added up in float32.
        yield _moved("fusion", 24.0 * weights)
    elif sizes.sharded:
        # Gathered weights in the order that the products of the gradients want.
        yield _moved("copy", 4.0 * weights)
    else:
        yield _moved("fusion", 18.0 * weights)
    if sizes.tensor_sequence:
        # Sequences are not the first dimension: each gather and each scatter over them
        # needs another order.
        yield _moved("transpose", 52.0 * tokens * shape.width)


def weights_here(shape: ModelShape, sizes: MeshSizes) -> tuple[float, float]:
    """Weights of the fullest stage's layers, and of the ends, that a replica has."""
    repeated, dense, outer = _cut_weights(shape, sizes.tensor, sizes.expert)
    inner = repeated * layers_here(shape, sizes) + dense * shape.dense_layers
    return inner, outer


@functools.lru_cache(maxsize=1 << 10)
def _cut_weights(
    shape: ModelShape, tensor: int, expert: int
) -> tuple[float, float, float]:
    """Weights of a layer, of a dense one and of the ends, on one device."""

    def of(weights: tuple[WeightShape, ...]) -> float:
        return sum(
            weight.size
            / (tensor if weight.tensor else 1)
            / (expert if weight.expert else 1)
            for weight in weights
        )

    layers = shape.layer_weights(), shape.layer_weights(dense=True)
    return of(layers[0]), of(layers[1]), of(shape.outer_weights())


@functools.lru_cache(maxsize=1 << 10)
def expert_weights(shape: ModelShape) -> int:
    """Weights of the experts of one layer."""
    return sum(weight.size for weight in shape.layer_weights() if weight.expert)
