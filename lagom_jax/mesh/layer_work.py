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
from lagom_jax.mesh.attention_work import attention_work
from lagom_jax.mesh.flows import (
    COMPUTE_BYTES,
    expert_slices,
    layers_here,
    micro_tokens,
)
from lagom_jax.mesh.frameworks import Framework
from lagom_jax.mesh.kernel_work import BF16, F32, moved, product
from lagom_jax.mesh.model_shape import ModelShape, WeightShape
from lagom_jax.mesh.sizes import MeshSizes, StepBatch

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
# Kernels of a layer and micro batch that hardly move anything: sums of rows, indices,
# places in stacks of layers; those of biases; and those that choose experts and slots,
# once and for each part of a micro batch.
_SMALL: Final = 36
_SMALL_OF_BIASES: Final = 44
_SMALL_OF_EXPERTS: Final = 46
_SMALL_BYTES: Final = 1 << 16
# Times that norms and residuals pass over the activations of a layer.
_NORM_PASSES: Final = 8.0


@dataclasses.dataclass(frozen=True, slots=True)
class LayerWork:
    """Kernels of one layer and micro batch on one device."""

    projecting: tuple[Work, ...]
    """Forward, queries, keys and values."""
    attending: tuple[Work, ...]
    """Forward, attention and its output."""
    feeding: tuple[Work, ...]
    """Forward, the feed-forward but for its last product."""
    leaving: tuple[Work, ...]
    """Forward, the last product."""
    around: tuple[Work, ...]
    """Forward, norms, residuals, activations and the way to experts and back."""
    attending_again: tuple[Work, ...]
    """Attention and its output, computed again."""
    again: tuple[Work, ...]
    """Of the forward pass, everything that the backward pass computes again."""
    backward: tuple[Work, ...]
    aside: tuple[Work, ...]
    """Backward, what no other kernel waits for: weights' gradients."""
    fed_back: tuple[Work, ...]
    """Backward, the gradients of what enters the feed-forward's products."""

    @property
    def forward(self) -> tuple[Work, ...]:
        """The whole forward pass."""
        entering = self.projecting + self.attending
        return entering + self.feeding + self.leaving + self.around


@functools.lru_cache(maxsize=1 << 10)
def layer_work(
    shape: ModelShape,
    sizes: MeshSizes,
    batch: StepBatch,
    framework: Framework,
    generation: int,
    *,
    dense: bool = False,
) -> LayerWork:
    """The work of one layer on one micro batch.

    Args:
        shape: The model.
        sizes: The mesh.
        batch: What a step is trained on.
        framework: How the step is built.
        generation: Of the GPU, as in compute capability 9.0.
        dense: A layer without experts.
    """
    parts = _parts(shape, sizes, framework)
    sizes = dataclasses.replace(sizes, micro_batch=sizes.micro_batch // parts)
    attention = attention_work(shape, sizes, batch, framework, generation)
    tokens = micro_tokens(sizes, batch)
    projections = _projections(shape, sizes, tokens, batch.products)
    feeding = _feeding(shape, sizes, tokens, framework, batch.products, dense=dense)
    around = _around(shape, sizes, tokens, framework, dense=dense)
    first, *fed, last = map(product, (*projections, *feeding))
    out, *fed = fed
    attending, leaving = (*attention.forward, out), (last,)
    attending_again = (*attention.again, out)
    matmuls = (*projections, *feeding)
    narrow = batch.products != BF16
    if narrow:
        attending += (_narrowed([(one.m, one.k, one.batch) for one in projections]),)
        leaving += (_narrowed([(one.m, one.k, one.batch) for one in feeding]),)
    back, aside = zip(*map(_gradients, matmuls), strict=True)
    backward = (*map(product, (*back, *aside)), *attention.backward, *around, *around)
    if narrow:
        backward += (_narrowed([(one.m, one.n, one.batch) for one in matmuls]),)
    again: tuple[Work, ...] = ()
    if sizes.remat == "full":
        # The last product of all is not needed to find the gradients.
        fed_again = (*fed, last) if framework.recomputes_whole else fed
        again = (first, *attending_again, *fed_again, *around)
    elif sizes.remat == "selective":
        again = (*attention.again, *around) if not framework.fused_attention else around
        if framework.recomputes == "feed-forward":
            again = (*map(product, feeding[:-1]), *around)
    small = tuple(_small(shape, framework, parts, dense=dense))
    weights = tuple(_around_weights(shape, sizes, parts * tokens, framework))
    needless = attention.needless if sizes.remat == "full" else ()
    return LayerWork(
        projecting=parts * (first,),
        attending=parts * attending,
        feeding=parts * tuple(fed),
        leaving=parts * leaving,
        around=parts * around + small,
        attending_again=parts * attending_again,
        again=parts * again + (small if again else ()),
        backward=(*(parts * backward), *small, *small, *weights),
        aside=parts * (*map(product, aside), *needless),
        fed_back=parts * tuple(map(product, back[len(projections) :])),
    )


def _small(
    shape: ModelShape, framework: Framework, parts: int, *, dense: bool
) -> Iterator[Work]:
    """Kernels that take no longer than their start, in each of four passes."""
    if framework.name != "xla":
        return
    count = _SMALL + (_SMALL_OF_BIASES if shape.bias else 0)
    if shape.experts is not None and not dense:
        count += _SMALL_OF_EXPERTS * (1 + parts)
    yield from count // 4 * (moved("fusion", _SMALL_BYTES),)


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
    logits = Matmul(1, tokens, words, width, BF16, BF16, F32)
    wide = BF16 if framework.fused_norms else F32
    back = (
        Matmul(1, tokens, width, words, wide, wide, F32),
        Matmul(1, width, words, tokens, wide, wide, F32),
    )
    return (
        *map(product, (logits, *back)),
        moved("reduction", 16.0 * tokens * words),
        moved("fusion", 8.0 * words * width),
        moved("gather", 12.0 * tokens * width),
    )


def optimizer_work(held: float, framework: Framework) -> Work:
    """The update of so many weights: adamw in float32."""
    del framework
    return moved("fusion", 32.0 * held)


def _narrowed(operands: list[tuple[int, int, int]]) -> Work:
    """Operands put into a narrow type: read in bfloat16 and written in both orders."""
    elements = sum(rows * columns * batch for rows, columns, batch in operands)
    return moved("fusion", 4.0 * elements)


def _gradients(product: Matmul) -> tuple[Matmul, Matmul]:
    batch, m, n, k = product.batch, product.m, product.n, product.k
    kind = product.lhs
    return (
        Matmul(batch, m, k, n, kind, kind, BF16),
        Matmul(batch, k, n, m, kind, kind, BF16),
    )


def _projections(
    shape: ModelShape, sizes: MeshSizes, tokens: int, kind: str
) -> list[Matmul]:
    """Queries, keys and values at once, and the output."""
    cut = sizes.tensor
    inner = shape.width // cut
    wide = inner + 2 * max(1, shape.kv_width // cut)
    return [
        Matmul(1, tokens, wide, shape.width, kind, kind, BF16),
        Matmul(1, tokens, shape.width, inner, kind, kind, BF16),
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
        up = Matmul(1, tokens, hidden // cut, shape.width, kind, kind, BF16)
        down = Matmul(1, tokens, shape.width, hidden // cut, kind, kind, BF16)
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
    up = Matmul(here, rows, hidden, shape.width, kind, kind, BF16)
    down = Matmul(here, rows, shape.width, hidden, kind, kind, BF16)
    found = [up, up, down]
    if experts.shared:
        found = dense_products(experts.shared * experts.hidden) + found
    return found


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
            moved(kind, each * rows * shape.width * COMPUTE_BYTES)
            for kind, each in passes.items()
        )
    inside = 4.0 if shape.gated else 3.0
    inside *= tokens * hidden / sizes.tensor * COMPUTE_BYTES
    return (
        moved("reduction", outside / 2),
        moved("fusion", outside / 2 + inside),
        *more,
    )


def _around_weights(
    shape: ModelShape, sizes: MeshSizes, tokens: int, framework: Framework
) -> Iterator[Work]:
    """Work on weights and their gradients beside the products, for each micro batch."""
    weights, _, _ = _cut_weights(shape, sizes.tensor, sizes.expert)
    if framework.name != "xla":
        if framework.added_bytes:
            yield moved("fusion", framework.added_bytes * weights)
        return
    if sizes.pipeline > 1:
        # Cast each time in both passes, and gradients added up in float32.
        yield moved("fusion", 24.0 * weights)
    elif sizes.sharded:
        # Gathered weights in the order that the products of the gradients want.
        yield moved("copy", 4.0 * weights)
    else:
        yield moved("fusion", 18.0 * weights)
    if sizes.tensor_sequence:
        # Sequences are not the first dimension: each gather and each scatter over them
        # needs another order.
        sides = 1 if shape.parallel_block else 2
        yield moved("transpose", 26.0 * sides * tokens * shape.width)


def weights_cast(shape: ModelShape, sizes: MeshSizes) -> Work:
    """A layer's weights, read and written in 16 bits."""
    weights, _, _ = _cut_weights(shape, sizes.tensor, sizes.expert)
    return moved("copy", 4.0 * weights)


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
