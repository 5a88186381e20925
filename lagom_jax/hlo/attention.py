"""Fused attention kernels: cuDNN's through XLA, and Transformer Engine's."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from lagom_jax.hlo.config import backend_config, section
from lagom_jax.hlo.matmul import Matmul, dimension_numbers, integers
from lagom_jax.hlo.module import Instruction, Shape

_CAUSAL = {"CAUSAL", "PADDING_CAUSAL", 2, 3}
# Transformer Engine has two more, whose diagonal ends in the lower right corner.
_CAUSAL_ENGINE = {2, 3, 4, 5}


@dataclasses.dataclass(frozen=True, slots=True)
class AttentionKernel:
    """The products inside one fused attention kernel.

    Example:
        Causal attention needs half of the square of scores:

        >>> full = AttentionKernel(2 * 8, 1024, 1024, 64, 64, 1024, False, "bf16")
        >>> dataclasses.replace(full, visible=512).flops / full.flops
        0.5
        >>> full.flops == 4 * 2 * 8 * 1024 * 1024 * 64
        True
    """

    heads: int
    """Query heads of all sequences in the batch."""
    queries: int
    keys: int
    width: int
    """Size of a query and of a key."""
    value_width: int
    visible: float
    """Keys that a query attends to, on average over the queries."""
    backward: bool
    type: str

    @property
    def matmuls(self) -> tuple[Matmul, ...]:
        """The products without a mask, forward or backward."""
        heads, q, k, type_ = self.heads, self.queries, self.keys, self.type
        scores = Matmul(heads, q, k, self.width, type_, type_, "f32")
        if not self.backward:
            mix = Matmul(heads, q, self.value_width, k, type_, type_, type_)
            return (scores, mix)
        return (
            scores,
            Matmul(heads, q, k, self.value_width, type_, type_, "f32"),
            Matmul(heads, k, self.value_width, q, type_, type_, type_),
            Matmul(heads, q, self.width, k, type_, type_, type_),
            Matmul(heads, k, self.width, q, type_, type_, type_),
        )

    @property
    def flops(self) -> float:
        """Operations of the products, over the visible keys only."""
        total = sum(product.flops for product in self.matmuls)
        return total * self.visible / self.keys if self.keys else 0.0


def visible_keys(queries: int, keys: int, causal: bool, window: int = 0) -> float:
    """Keys that a query attends to, on average.

    A causal mask leaves half of the square below the diagonal; a sliding window of
    `window` keys leaves a band of it.

    Example:
        >>> visible_keys(1024, 1024, causal=True)
        512.0
        >>> visible_keys(1024, 1024, causal=True, window=256)
        224.0
        >>> visible_keys(128, 1024, causal=False)
        1024.0
    """
    if not causal or not queries:
        return float(keys)
    reach = min(window, keys) if window > 0 else keys
    # The mask's edge reaches its full width after `reach` queries: a triangle, then
    # a band.
    triangle = min(reach, queries)
    return (triangle * triangle / 2 + (queries - triangle) * reach) / queries


def cudnn_attention(
    instruction: Instruction, operands: Sequence[Shape]
) -> AttentionKernel:
    """The attention that a `__cudnn$fmha...` call computes.

    Args:
        instruction: The custom call.
        operands: Shapes of its operands: queries, keys, values, and more.
    """
    config = section(backend_config(instruction), "cudnn_fmha_backend_config")
    query, key, value = operands[:3]
    numbers = config.get("bmm1_dot_dimension_numbers")
    summed = dimension_numbers(numbers)[0] if numbers else ()
    # The gradient's config has other products; the head size comes last in all.
    width = math.prod([query.dimensions[d] for d in summed or (-1,)])
    value_width = value.element_count * width // max(1, key.element_count)
    scores = _dimensions(config.get("intermediate_tensor_shape"))
    if len(scores) >= 2:
        *batch, queries, keys = scores
        heads = math.prod(batch)
    else:
        together = dimension_numbers(numbers)[2] if numbers else (0, 1)
        heads = math.prod([query.dimensions[d] for d in together])
        queries = query.element_count // max(1, heads * width)
        rhs_heads = math.prod([key.dimensions[d] for d in together])
        keys = key.element_count // max(1, rhs_heads * width)
    causal = bool(config.get("is_causal_mask")) or config.get("mask_type") in _CAUSAL
    window = int(config.get("sliding_window_length", 0))
    backward = "Backward" in instruction.proto.custom_call_target
    visible = visible_keys(queries, keys, causal, window)
    return AttentionKernel(
        heads, queries, keys, width, value_width, visible, backward, query.type
    )


def _dimensions(shape: Any) -> tuple[int, ...]:
    if not isinstance(shape, Mapping):
        return ()
    return integers(shape.get("dimensions", ()))  # pyright: ignore


def engine_attention(
    instruction: Instruction, operands: Sequence[Shape]
) -> AttentionKernel | None:
    """The attention of a Transformer Engine call, or None without its attributes.

    Args:
        instruction: A `te_fused_attn_forward_ffi` or `te_fused_attn_backward_ffi`.
        operands: Shapes of its operands.
    """
    proto = instruction.proto
    text = proto.backend_config or proto.backend_config_payload.value
    found = re.findall(rb"(\w+) = (-?\d+) : i\d+", text)
    config = {name.decode(): int(value) for name, value in found}
    try:
        heads = config["input_batch"] * config["attn_heads"]
        queries, keys = config["q_max_seqlen"], config["kv_max_seqlen"]
        width = config.get("qk_head_dim", config.get("head_dim", 0))
        value_width = config.get("v_head_dim", width)
    except KeyError:
        return None
    causal = config.get("mask_type") in _CAUSAL_ENGINE
    # The window counts the keys to the left of the query's own.
    window = config.get("window_size_left", -1) + 1
    visible = visible_keys(queries, keys, causal, window)
    backward = "backward" in proto.custom_call_target
    return AttentionKernel(
        heads, queries, keys, width, value_width, visible, backward, operands[0].type
    )
